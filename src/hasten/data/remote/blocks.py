"""Cache parts of remote files on this machine, shared by its processes.

A remote file is represented by a sparse local file of the same size, with an index of the parts (1 MiB each) that were
fetched. A part is fetched under a lock of its own, so two ranks never fetch it twice. Its bytes are written before its index
entry, so a part is fetched again if the process is killed in between. Every process verifies a part against the manifest's
checksum before reading it for the first time, and fetches damaged parts again. When the cache exceeds its size limit, the
least recently used files are unlinked. Processes that have such a file mapped can keep using it.
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
"""The system's `struct flock`: type, base, start, length, process."""
_CHECK_SIZE_BYTES = 64 * 2**20
"""Number of bytes fetched between two checks of the cache size."""


class BlockCache:
    """Cache parts of remote files in a folder, for all processes of this machine.

    Args:
        folder: Folder of the cache.
        max_bytes: Maximum size of the files; above 0. Files in use may exceed it.
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
        """Map a remote file. Its parts are fetched when they are needed."""
        name = hashlib.sha256(f"{remote.url}\0{file.path}\0{file.sha256}".encode()).hexdigest()[:32]
        return RemoteMap(self, self.folder / name, remote, file)

    def grown(self, num_bytes: int) -> None:
        """Count fetched bytes, and evict files from time to time."""
        with self._guard:
            self._fetched += num_bytes
            if self._fetched < min(_CHECK_SIZE_BYTES, self.max_bytes // 4):
                return
            self._fetched = 0
        self._make_room()

    def size(self) -> int:
        """Return the size of the cache on disk in bytes."""
        return sum(part.stat().st_blocks * 512 for part in self.folder.glob("*.part"))

    def _make_room(self) -> None:
        files = []
        for part in self.folder.glob("*.part"):
            try:
                stat = part.stat()
                used = part.with_suffix(".have").stat().st_mtime_ns
            except FileNotFoundError:  # evicted by another process in the meantime
                continue
            files.append((used, stat.st_blocks * 512, part))
        total = sum(size for _, size, _ in files)
        for _, size, part in sorted(files):
            if total <= self.max_bytes:
                return
            # Index first: parts without an index are fetched again, but an index without its parts would be wrong.
            part.with_suffix(".have").unlink(missing_ok=True)
            part.unlink(missing_ok=True)
            total -= size


class RemoteMap(Mapped):
    """Map a remote file, of which only the fetched parts can be read."""

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
        """Fetch the missing parts of a range."""
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
        """Make sure that a part is present and matches its checksum."""
        start, end = part * PART_BYTES, min((part + 1) * PART_BYTES, self._file.num_bytes)
        if os.pread(self._have, 1, part) == b"\1" and zlib.crc32(self.view[start:end]) == self._file.parts[part]:
            return
        with _locked(self._have, part):
            if os.pread(self._have, 1, part) == b"\1" and zlib.crc32(self.view[start:end]) == self._file.parts[part]:
                return  # fetched by another process in the meantime
            self._fetch(part, start, end)
        self._cache.grown(end - start)

    def _fetch(self, part: int, start: int, end: int) -> None:
        for _ in range(2):
            try:
                data = self._remote.read(self._file.path, start, end)
            except FileNotFoundError as error:
                raise CorruptError(
                    f"{self._remote.url}/{self._file.path} is missing, although the manifest lists it: restore it, or "
                    f"convert the source again."
                ) from error
            if zlib.crc32(data) == self._file.parts[part]:
                break
        else:
            raise CorruptError(
                f"bytes {start:,} to {end:,} of {self._remote.url}/{self._file.path} do not match their checksum after two "
                f"attempts: restore the file, or convert the source again."
            )
        try:
            write_at(self._data, data, start)
        except OSError as error:
            raise DataError(
                f"the cache {self._cache.folder} is not writable ({error.strerror}): free some space, or use another "
                f"folder (cache_dir=...)."
            ) from error
        os.pwrite(self._have, b"\1", part)

    def _touch(self) -> None:
        """Mark the file as in use, at most once a second."""
        now = time.monotonic()
        if now - self._touched > 1.0:
            self._touched = now
            try:
                os.utime(self._have_path)
            except FileNotFoundError:  # evicted: this map keeps using the unlinked file
                return


def _sized(path: Path, size: int) -> int:
    """Open a file and extend it with zeros to at least this size."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if os.fstat(handle).st_size < size:
        os.ftruncate(handle, size)
    return handle


@contextmanager
def _locked(handle: int, part: int) -> Iterator[None]:
    """Allow one process at a time to work on this part. The lock is released when its process ends.

    The lock belongs to the open file, not to the process. With the older kind of lock, two threads of one process waiting
    for two threads of another would be reported as a deadlock, and closing any handle of the file would release the lock.
    """
    command = getattr(fcntl, "F_OFD_SETLKW", fcntl.F_SETLKW)
    fcntl.fcntl(handle, command, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, part, 1, 0))
    try:
        yield
    finally:
        fcntl.fcntl(handle, command, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, part, 1, 0))
