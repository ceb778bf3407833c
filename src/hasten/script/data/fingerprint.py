"""What a dataset holds: open files, which readers must not share, and whether the script has changed it."""

from __future__ import annotations

import io
import weakref
from collections import deque
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

MAX_DEPTH = 5
MAX_VALUES = 2000
FIRST_ITEMS = 16
"""So many items of a container are looked at."""
HANDLES = frozenset({"h5py", "sqlite3", "zipfile", "tarfile", "socket", "lmdb", "netCDF4", "tables", "psycopg", "psycopg2"})
"""Packages whose objects stand for something open, with a position or a connection of its own."""
_PLAIN = (str, bytes, bool, int, float, complex, type(None))
_CLOSED = (type, FunctionType, BuiltinFunctionType, MethodType, ModuleType, torch.Tensor, np.ndarray, torch.nn.Module)


def open_handle(dataset: Any) -> str:
    """Where a dataset holds an open file or connection, and of which class; empty where none was found."""
    for path, value in _values(dataset):
        package = type(value).__module__.partition(".")[0]
        if (isinstance(value, io.IOBase) and not value.closed) or package in HANDLES:
            return f"{path} ({type(value).__name__})"
    return ""


def fingerprint(dataset: Any, moving: frozenset[str] = frozenset()) -> dict[str, Any]:
    """A fingerprint that differs once the script has changed a setting of the dataset or an object it holds.

    Args:
        dataset: The dataset.
        moving: What to leave out, with all it holds: what reading a sample changes by itself.
    """
    return {path: _token(value) for path, value in _values(dataset, moving)}


def changed_paths(before: dict[str, Any], after: dict[str, Any]) -> frozenset[str]:
    """Where a dataset was changed between two fingerprints."""
    gone = object()
    return frozenset(path for path in {**before, **after} if before.get(path, gone) != after.get(path, gone))


def _token(value: Any) -> Any:
    if isinstance(value, _PLAIN):
        return value if isinstance(value, str | bytes) else repr(value)
    if isinstance(value, torch.Tensor):
        return _Same(value), None if value.is_inference() else value._version  # noqa: SLF001 - counts changes in place
    if isinstance(value, list | tuple | dict | set | frozenset | deque):
        return _Same(value), len(value)
    return _Same(value)


class _Same:
    """Equal for one object only: another that stands at the address of a gone one is told from it, where that can be."""

    __hash__ = None  # type: ignore[assignment]  # marks are compared, not looked up

    def __init__(self, value: Any) -> None:
        self._at = id(value)
        try:
            self._alive: weakref.ref[Any] | None = weakref.ref(value)
        except TypeError:  # plain containers have no weak references; what they hold is marked too
            self._alive = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Same) or self._at != other._at:
            return False
        if self._alive is None or other._alive is None:
            return self._alive is other._alive
        value = self._alive()
        return value is not None and value is other._alive()


def _values(dataset: Any, moving: frozenset[str] = frozenset()) -> Iterator[tuple[str, Any]]:
    """The dataset and what it holds, the outermost first, with where each stands."""
    waiting: deque[tuple[str, Any, int]] = deque([("the dataset", dataset, 0)])
    seen: set[int] = set()
    count = 0
    while waiting and count < MAX_VALUES:
        path, value, depth = waiting.popleft()
        count += 1
        yield path, value
        if isinstance(value, (*_PLAIN, *_CLOSED)) or id(value) in seen or depth == MAX_DEPTH:
            continue
        seen.add(id(value))
        inner = ((f"{path}{name}", held) for name, held in _held(value))
        waiting.extend((name, held, depth + 1) for name, held in inner if name not in moving)


def _held(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [(f"[{key!r}]", value[key]) for key in list(value)[:FIRST_ITEMS]]
    if isinstance(value, list | tuple):
        return [(f"[{at}]", item) for at, item in enumerate(value[:FIRST_ITEMS])]
    return [(f".{name}", held) for name, held in list(getattr(value, "__dict__", {}).items())]
