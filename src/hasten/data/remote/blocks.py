"""Parts of remote files, kept on this machine and shared by its processes.

A remote file is a sparse local file of the same size, with an index that says which parts (a mebibyte each) are there. A
part is fetched under a lock on it alone, so that two ranks never fetch it twice; its bytes are written before its entry in
the index, so that a process killed in between leaves a part that is fetched again. Every process checks a part against the
manifest's checksum before it first reads it: a damaged one is fetched anew. When the cache grows over its bound, the files
longest unused are unlinked; whoever has one mapped keeps it until he lets go.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hasten.core.errors import CorruptError, DataError
from hasten.core.files import write_at
from hasten.data.remote.fetch import Remote
from hasten.data.store.layout import PART_BYTES, ShardFile
from hasten.data.store.mapping import Mapped

_FLOCK = struct.Struct("@hhqqi")
"""The system's `struct flock`: kind, whence, start, length, process."""
_LOOK_AFTER_BYTES = 64 * 2**20
"""Bytes fetched after which the size of the cache is looked at again."""


class BlockCache:
    """A folder of remote files' parts, for all processes of this machine.

    Args:
        folder: Where.
        max_bytes: That the files may take; above 0. A file in use may go over it.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        if max_bytes <= 0:
            raise DataError(f"cache_bytes must be above 0, not {max_bytes}.")
        self.folder, self.max_bytes = folder, max_bytes
        self._fetched = 0
        self._guard = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def __getstate__(self) -> dict[str, object]:
        return {"folder": self.folder, "max_bytes": self.max_bytes}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def open(self, remote: Remote, file: ShardFile) -> RemoteMap:
        """A remote file, mapped; its parts come as they are needed."""
        name = hashlib.sha256(f"{remote.url}\0{file.path}\0{file.sha256}".encode()).hexdigest()[:32]
        return RemoteMap(self, self.folder / name, remote, file)

    def grown(self, num_bytes: int) -> None:
        """Take note of bytes fetched, and make room now and then."""
        with self._guard:
            self._fetched += num_bytes
            if self._fetched < min(_LOOK_AFTER_BYTES, self.max_bytes // 4):
                return
            self._fetched = 0
        self._make_room()

    def size(self) -> int:
        """Bytes on disk."""
        return sum(part.stat().st_blocks * 512 for part in self.folder.glob("*.part"))

    def _make_room(self) -> None:
        files = []
        for part in self.folder.glob("*.part"):
            try:
                stat = part.stat()
                used = part.with_suffix(".have").stat().st_mtime_ns
            except FileNotFoundError:  # another process made room meanwhile
                continue
            files.append((used, stat.st_blocks * 512, part))
        total = sum(size for _, size, _ in files)
        for _, size, part in sorted(files):
            if total <= self.max_bytes:
                return
            # The index first: a part without an index is fetched anew, an index without its parts would lie.
            part.with_suffix(".have").unlink(missing_ok=True)
            part.unlink(missing_ok=True)
            total -= size


class RemoteMap(Mapped):
    """A remote file, of which the parts that are here can be read."""

    def __init__(self, cache: BlockCache, path: Path, remote: Remote, file: ShardFile) -> None:
        self._cache, self._remote, self._file = cache, remote, file
        self._num_parts = -(-file.num_bytes // PART_BYTES)
        self._checked = bytearray(self._num_parts)
        self._guards = [threading.Lock() for _ in range(min(self._num_parts, 64))]
        if not file.num_bytes:
            self.view = memoryview(b"")
            return
        self._data = _sized(path.with_suffix(".part"), file.num_bytes)
        self._have = _sized(path.with_suffix(".have"), self._num_parts)
        self._have_path = path.with_suffix(".have")
        self._touched = 0.0
        self._map = mmap.mmap(self._data, file.num_bytes, prot=mmap.PROT_READ)
        self.view = memoryview(self._map)

    def need(self, start: int, end: int) -> None:
        """Fetch the parts of a range that are not here yet."""
        if end <= start:
            return
        self._touch()
        for part in range(start // PART_BYTES, -(-end // PART_BYTES)):
            if not self._checked[part]:
                with self._guards[part % len(self._guards)]:
                    if not self._checked[part]:
                        self._make_sure(part)
                        self._checked[part] = 1

    def __del__(self) -> None:
        for handle in ("_data", "_have"):
            if hasattr(self, handle):
                os.close(getattr(self, handle))

    def _make_sure(self, part: int) -> None:
        """A part is here and is what was written."""
        start, end = part * PART_BYTES, min((part + 1) * PART_BYTES, self._file.num_bytes)
        if os.pread(self._have, 1, part) == b"\1" and zlib.crc32(self.view[start:end]) == self._file.parts[part]:
            return
        with _locked(self._have, part):
            if os.pread(self._have, 1, part) == b"\1" and zlib.crc32(self.view[start:end]) == self._file.parts[part]:
                return  # another process fetched it meanwhile
            self._fetch(part, start, end)
        self._cache.grown(end - start)

    def _fetch(self, part: int, start: int, end: int) -> None:
        for _ in range(2):
            try:
                data = self._remote.read(self._file.path, start, end)
            except FileNotFoundError as error:
                raise CorruptError(
                    f"{self._remote.url}/{self._file.path} is missing, although the manifest names it: restore it, or "
                    f"convert "
                    f"the source again."
                ) from error
            if zlib.crc32(data) == self._file.parts[part]:
                break
        else:
            raise CorruptError(
                f"bytes {start:,} to {end:,} of {self._remote.url}/{self._file.path} are not what was written, twice in "
                f"a row: "
                f"restore the file, or convert the source again."
            )
        try:
            write_at(self._data, data, start)
        except OSError as error:
            raise DataError(
                f"the cache {self._cache.folder} cannot be written ({error.strerror}): free some space, or give another "
                f"folder "
                f"(cache_dir=...)."
            ) from error
        os.pwrite(self._have, b"\1", part)

    def _touch(self) -> None:
        """Say that the file is in use, now and then."""
        now = time.monotonic()
        if now - self._touched > 1.0:
            self._touched = now
            try:
                os.utime(self._have_path)
            except FileNotFoundError:  # unlinked to make room; this map goes on without a name
                return


def _sized(path: Path, size: int) -> int:
    """A file of at least this size, opened; zeros where it is new."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if os.fstat(handle).st_size < size:
        os.ftruncate(handle, size)
    return handle


@contextmanager
def _locked(handle: int, part: int) -> Iterator[None]:
    """One process at a time at this part; the lock ends with its process.

    The lock belongs to the open file, not to the process: the older kind would see a deadlock where two threads of one
    process wait for two of another, and end when any handle of the file is closed.
    """
    command = getattr(fcntl, "F_OFD_SETLKW", fcntl.F_SETLKW)
    fcntl.fcntl(handle, command, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, part, 1, 0))
    try:
        yield
    finally:
        fcntl.fcntl(handle, command, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, part, 1, 0))
