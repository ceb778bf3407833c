"""Cache values in the memory of this process, evicting the least recently used first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from hasten.core.errors import DataError
from hasten.data.cache.contract import Cache


class MemoryCache(Cache):
    """Cache values in this process.

    Args:
        max_bytes: Maximum total size of the values; above 0.
    """

    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        if max_bytes <= 0:
            raise DataError(f"max_bytes must be above 0, not {max_bytes}.")
        self._max = max_bytes
        self._values: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0
        self._guard = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {"max_bytes": self._max}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["max_bytes"])  # type: ignore[misc]

    def read(self, keys: Sequence[str]) -> list[bytes | memoryview | None]:
        """Read the values of several keys."""
        values: list[bytes | memoryview | None] = []
        with self._guard:
            for key in keys:
                value = self._values.get(key)
                if value is not None:
                    self._values.move_to_end(key)
                values.append(value)
        return values

    def write(self, values: Mapping[str, bytes]) -> int:
        """Store values, except those larger than the cache."""
        stored = 0
        with self._guard:
            for key, value in values.items():
                if len(value) > self._max:
                    continue
                self._bytes -= len(self._values.pop(key, b""))
                self._values[key] = value
                self._bytes += len(value)
                stored += 1
                while self._bytes > self._max:
                    self._bytes -= len(self._values.popitem(last=False)[1])
        return stored

    def __len__(self) -> int:
        return len(self._values)

    @property
    def num_bytes(self) -> int:
        """Return the total size of the values in bytes."""
        return self._bytes

    def clear(self) -> None:
        """Remove all values."""
        with self._guard:
            self._values.clear()
            self._bytes = 0
