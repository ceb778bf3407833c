"""Cache values in an LMDB database: shared by the processes of a machine, and never partially written.

LMDB (the Symas Lightning Memory-Mapped Database) reads through a memory map and commits atomically. A full database keeps
its values and accepts no more. Evicting the oldest values would be worse: an epoch over more samples than fit would then
find none of them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hasten.core.errors import DataError, MachineError
from hasten.data.cache.contract import Cache


class LmdbCache(Cache):
    """Cache values in an LMDB database.

    Args:
        path: Folder of the database.
        max_bytes: Maximum size of the database; above 0. Values of 2 KB and more use whole pages of 4 KiB.

    Raises:
        MachineError: The package lmdb is not installed.
        DataError: The folder cannot be opened, or contains something else.
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
        """Read the values of several keys in one transaction."""
        with self._environment().begin() as transaction:
            return [transaction.get(key.encode()) for key in keys]

    def write(self, values: Mapping[str, bytes]) -> int:
        """Store values in one transaction: all of them, or none if they do not fit."""
        import lmdb  # noqa: PLC0415  of the extra `lmdb`

        try:
            with self._environment().begin(write=True) as transaction:
                for key, value in values.items():
                    transaction.put(key.encode(), value)
        except (lmdb.MapFullError, lmdb.DiskError):
            return 0
        return len(values)

    def __len__(self) -> int:
        return int(self._environment().stat()["entries"])

    @property
    def num_bytes(self) -> int:
        """Return the size of the pages in use, in bytes."""
        stat = self._environment().stat()
        return int(stat["psize"] * (stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]))

    def clear(self) -> None:
        """Remove all values."""
        environment = self._environment()
        with environment.begin(write=True) as transaction:
            transaction.drop(environment.open_db(None, transaction), delete=False)

    def close(self) -> None:
        """Close the database."""
        with self._guard:
            if self._opened is not None and self._process == os.getpid():
                self._opened.close()
            self._opened = None

    def _environment(self) -> Any:
        """Return the database, opened once per process as LMDB requires."""
        with self._guard:
            if self._opened is not None and self._process != os.getpid():
                self._opened.close()  # copied by a fork: LMDB forbids its use, and closing it affects only this process
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
            # Commits are not flushed: a system crash may lose the last values, but never corrupts the database.
            return lmdb.open(str(self._path), map_size=self._max, sync=False, readahead=False, mode=0o600)
        except (OSError, lmdb.Error) as error:
            raise DataError(
                f"the cache {self._path} cannot be opened ({error}): remove the folder, or use another one."
            ) from error
