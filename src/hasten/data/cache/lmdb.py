"""Values in an LMDB database: shared by the processes of a machine, never half-written, and forgetting the oldest.

LMDB (the Symas Lightning Memory-Mapped Database) reads through a memory map and commits in one step. It knows no time of
use, so that the values written first go first when there is no more room.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hasten.core.errors import DataError, MachineError
from hasten.data.cache.contract import Cache

_VALUES, _ORDER, _KEYS = b"values", b"order", b"keys"
_DROPPED_FRAC = 0.1
"""Share of the values that go at once when there is no more room."""
_OVERHEAD = 2
"""The database file may be so many times larger than the values: keys, pages that are not full, and a commit's copies."""


class LmdbCache(Cache):
    """A cache in an LMDB database.

    Args:
        path: Its folder.
        max_bytes: That values may take together; above 0.

    Raises:
        MachineError: The package lmdb is not installed.
        DataError: The folder cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str], max_bytes: int) -> None:
        super().__init__()
        if max_bytes <= 0:
            raise DataError(f"max_bytes must be above 0, not {max_bytes}.")
        self._path, self._max = Path(path), max_bytes
        self._opened: Any = None
        self._process = 0
        self._guard = threading.Lock()
        self._environment()

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self._path, "max_bytes": self._max}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["path"], state["max_bytes"])  # type: ignore[misc]

    def read(self, keys: Sequence[str]) -> list[bytes | memoryview | None]:
        """What is kept under the keys, in one transaction."""
        environment = self._environment()
        with environment.begin(db=self._values) as transaction:
            return [transaction.get(key.encode()) for key in keys]

    def write(self, values: Mapping[str, bytes]) -> int:
        """Keep values in one transaction; the oldest make room."""
        environment = self._environment()
        kept = 0
        with environment.begin(write=True) as transaction:
            for key, value in values.items():
                if len(value) > self._max:
                    continue
                self._put(transaction, key.encode(), value)
                kept += 1
        return kept

    def __len__(self) -> int:
        environment = self._environment()
        with environment.begin(db=self._values) as transaction:
            return int(transaction.stat(self._values)["entries"])

    @property
    def num_bytes(self) -> int:
        """Bytes of all values."""
        environment = self._environment()
        with environment.begin() as transaction:
            return self._total(transaction)

    def clear(self) -> None:
        """Forget everything."""
        environment = self._environment()
        with environment.begin(write=True) as transaction:
            for database in (self._values, self._order, self._keys):
                transaction.drop(database, delete=False)

    def close(self) -> None:
        """Let the database go."""
        with self._guard:
            if self._opened is not None and self._process == os.getpid():
                self._opened.close()
            self._opened = None

    def _environment(self) -> Any:
        """The database, opened once in each process, as LMDB demands."""
        with self._guard:
            if self._opened is not None and self._process != os.getpid():
                self._opened.close()  # a fork's copy, which LMDB forbids to use; it is closed here alone
                self._opened = None
            if self._opened is None:
                self._opened, self._process = self._open(), os.getpid()
            return self._opened

    def _open(self) -> Any:
        try:
            import lmdb  # noqa: PLC0415  of the extra `lmdb`
        except ImportError as error:
            raise MachineError("LmdbCache needs the package lmdb: pip install 'hasten[lmdb]'.") from error
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            # Without a flush at each commit: a crash of the machine may lose the last values, never mix them up.
            environment = lmdb.open(
                str(self._path), map_size=_OVERHEAD * self._max + 2**24, max_dbs=3, sync=False, readahead=False, mode=0o600
            )
        except (OSError, lmdb.Error) as error:
            raise DataError(f"the cache {self._path} cannot be opened: {error}.") from error
        self._values, self._order, self._keys = (environment.open_db(name) for name in (_VALUES, _ORDER, _KEYS))
        return environment

    def _put(self, transaction: Any, key: bytes, value: bytes) -> None:
        """Write a value, and note when; the sum of all sizes stands under the empty number."""
        self._remove(transaction, key)
        total = self._total(transaction)
        if total + len(value) > self._max:
            total = self._forget(transaction, total, max(total + len(value) - self._max, int(_DROPPED_FRAC * self._max)))
        cursor = transaction.cursor(self._order)
        number = int.from_bytes(cursor.key(), "big") + 1 if cursor.last() else 1
        transaction.put(number.to_bytes(8, "big"), len(value).to_bytes(8, "little") + key, db=self._order)
        transaction.put(key, number.to_bytes(8, "big"), db=self._keys)
        transaction.put(key, value, db=self._values)
        transaction.put(b"\0total", (total + len(value)).to_bytes(8, "little"), db=self._keys)

    def _forget(self, transaction: Any, total: int, wanted: int) -> int:
        """Take out the oldest values, at least so many bytes of them; what is left."""
        cursor = transaction.cursor(self._order)
        freed = 0
        while freed < wanted and cursor.first():
            entry = cursor.value()
            freed += int.from_bytes(entry[:8], "little")
            transaction.delete(entry[8:], db=self._values)
            transaction.delete(entry[8:], db=self._keys)
            cursor.delete()
        return total - freed

    def _remove(self, transaction: Any, key: bytes) -> None:
        number = transaction.get(key, db=self._keys)
        if number is None:
            return
        entry = transaction.get(number, db=self._order)
        total = self._total(transaction) - int.from_bytes(entry[:8], "little")
        transaction.delete(number, db=self._order)
        transaction.delete(key, db=self._values)
        transaction.delete(key, db=self._keys)
        transaction.put(b"\0total", total.to_bytes(8, "little"), db=self._keys)

    def _total(self, transaction: Any) -> int:
        return int.from_bytes(transaction.get(b"\0total", b"", db=self._keys), "little")
