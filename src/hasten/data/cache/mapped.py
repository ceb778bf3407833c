"""Values in a file that the processes of a machine share: read through a memory map, written under a lock.

`data` holds one record after another; `index` is a hash table of fixed size (open addressing) that says where. A record
repeats its key and carries a checksum, so that a reader, which takes no lock, sees at once if a writer was killed or is at
work, and takes that for a miss. Files only grow, up to the size allowed, and are never cut: a map beyond the end of a file
would kill its reader. When they are full, nothing more is kept.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from errno import EDQUOT, ENOSPC
from pathlib import Path
from typing import Any

from hasten.core.errors import CorruptError, DataError
from hasten.core.files import write_at
from hasten.data.cache.contract import Cache

_MAGIC = b"upcache1"
_HEAD = struct.Struct("<8sQQQ")
"""Of the index: a mark, the number of slots, where the data end, the number of values."""
_SLOT = struct.Struct("<16sQQ")
"""The key's digest, where its record stands (plus one: 0 is an empty slot), the length of the value."""
_RECORD = struct.Struct("<16sQ")
_BYTES_A_SLOT = 512
"""Values are taken to be at least so large; the table is a sparse file, so that slots that stay empty take no room."""
_FULL = 0.8


class MappedCache(Cache):
    """A cache in a folder, shared by all processes of this machine that open it.

    Args:
        path: The folder.
        max_bytes: That values may take together; above 0. The first to open the folder decides.

    Raises:
        DataError: The folder cannot be made, or max_bytes is not above 0.
        CorruptError: It holds something else.
    """

    def __init__(self, path: str | os.PathLike[str], max_bytes: int) -> None:
        super().__init__()
        if max_bytes <= 0:
            raise DataError(f"max_bytes must be above 0, not {max_bytes}.")
        self._path, self._max = Path(path), max_bytes
        self._opened: _Files | None = None
        self._guard = threading.Lock()
        self._files()

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self._path, "max_bytes": self._max}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["path"], state["max_bytes"])  # type: ignore[misc]

    def read(self, keys: Sequence[str]) -> list[bytes | memoryview | None]:
        """What is kept under the keys."""
        files = self._files()
        with self._guard:
            return [files.find(_digest(key)) for key in keys]

    def write(self, values: Mapping[str, bytes]) -> int:
        """Keep values, as long as there is room."""
        files = self._files()
        with self._guard, files.locked():
            return sum(files.add(_digest(key), value, self._max) for key, value in values.items())

    def __len__(self) -> int:
        return self._files().head()[1]

    @property
    def num_bytes(self) -> int:
        """Bytes of all values, those included that were written again since."""
        return self._files().head()[0]

    def clear(self) -> None:
        """Forget everything, for all processes."""
        files = self._files()
        with self._guard, files.locked():
            files.clear()

    def close(self) -> None:
        """Let the files go."""
        with self._guard:
            if self._opened is not None:
                self._opened.close()
                self._opened = None

    def _files(self) -> _Files:
        """The files, opened once in each process: a lock that a fork shares with its parent would lock nobody out."""
        with self._guard:
            if self._opened is None or self._opened.process != os.getpid():
                self._opened = _Files(self._path, self._max)
            return self._opened


class _Files:
    """The two files as one process has them open."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.process = os.getpid()
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._data, self._index = (
                os.open(path / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600) for name in ("data", "index")
            )
        except OSError as error:
            raise DataError(f"the cache {path} cannot be opened ({error.strerror}): check its permissions.") from error
        with self.locked():
            if os.fstat(self._index).st_size < _HEAD.size:
                slots = 1 << max(12, (max_bytes // _BYTES_A_SLOT).bit_length())
                os.ftruncate(self._index, _HEAD.size + slots * _SLOT.size)
                os.pwrite(self._index, _HEAD.pack(_MAGIC, slots, 0, 0), 0)
        mark, self._slots, _, _ = _HEAD.unpack(os.pread(self._index, _HEAD.size, 0))
        if mark != _MAGIC or os.fstat(self._index).st_size < _HEAD.size + self._slots * _SLOT.size:
            raise CorruptError(f"{path} is no cache of this version: remove the folder, or give another one.")
        self._table = mmap.mmap(self._index, _HEAD.size + self._slots * _SLOT.size, prot=mmap.PROT_READ)
        self._map: mmap.mmap | None = None
        self._full = False

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One writer at a time; the lock ends with its process."""
        fcntl.flock(self._data, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._data, fcntl.LOCK_UN)

    def head(self) -> tuple[int, int]:
        """Where the data end, and how many values there are."""
        _, _, end, count = _HEAD.unpack_from(self._table, 0)
        return end, count

    def find(self, digest: bytes) -> bytes | None:
        """A copy of the value; None where there is none, or not a whole one."""
        _, place, size = self._slot(digest)
        if not place:
            return None
        start = place - 1
        record = self._bytes(start, start + _RECORD.size + size)
        if record is None or _RECORD.unpack_from(record) != (digest, size):
            return None
        return record[_RECORD.size :]

    def add(self, digest: bytes, value: bytes, max_bytes: int) -> bool:
        """Write a value; within `locked`. False where there is no room."""
        end, count = self.head()
        size = _RECORD.size + len(value)
        at, place, _ = self._slot(digest)
        if self._full or end + size > max_bytes or (not place and count >= _FULL * self._slots):
            return False
        try:
            write_at(self._data, _RECORD.pack(digest, len(value)) + value, end)
        except OSError as error:
            if error.errno not in {ENOSPC, EDQUOT}:
                raise
            self._full = True  # what is kept stays of use
            return False
        # In this order: a writer that ends in between leaves a gap in the data, never a slot that points elsewhere.
        os.pwrite(self._index, _HEAD.pack(_MAGIC, self._slots, end + size, count + (not place)), 0)
        os.pwrite(self._index, _SLOT.pack(digest, end + 1, len(value)), at)
        return True

    def clear(self) -> None:
        """Empty every slot that is used; within `locked`."""
        empty = bytes(_SLOT.size)
        for at in range(_HEAD.size, len(self._table), _SLOT.size):
            if self._table[at : at + _SLOT.size] != empty:
                os.pwrite(self._index, empty, at)
        os.pwrite(self._index, _HEAD.pack(_MAGIC, self._slots, 0, 0), 0)
        self._full = False

    def close(self) -> None:
        self._table.close()
        if self._map is not None:
            self._map.close()
        os.close(self._data)
        os.close(self._index)

    def _slot(self, digest: bytes) -> tuple[int, int, int]:
        """Where the key's slot stands in the index, or the empty one it would take; then what it says."""
        number = int.from_bytes(digest[:8], "little") % self._slots
        while True:
            at = _HEAD.size + number * _SLOT.size
            have, place, size = _SLOT.unpack_from(self._table, at)
            if not place or have == digest:
                return at, place, size
            number = (number + 1) % self._slots

    def _bytes(self, start: int, end: int) -> bytes | None:
        """A copy of a part of the data; the map is made anew where the file has grown past it."""
        if self._map is None or end > len(self._map):
            size = os.fstat(self._data).st_size
            if end > size:
                return None
            if self._map is not None:
                self._map.close()
            self._map = mmap.mmap(self._data, size, prot=mmap.PROT_READ)
        return self._map[start:end]


def _digest(key: str) -> bytes:
    return hashlib.blake2b(key.encode(), digest_size=16).digest()
