"""Search a dataset for open files, which readers must not share, and for state that reading its samples changes.

The search covers everything reachable through its attributes, methods, their closures, and the globals that they use.
"""

from __future__ import annotations

import io
import logging
import weakref
from collections import deque
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

MAX_DEPTH = 12
"""Largest nesting depth that is searched."""
MAX_VALUES = 5000
"""Largest number of values that are searched."""
FIRST_ITEMS = 16
"""Number of first items of a container that are searched."""
HANDLES = frozenset({"h5py", "sqlite3", "zipfile", "tarfile", "socket", "lmdb", "netCDF4", "tables", "psycopg", "psycopg2"})
"""Packages whose objects represent an open resource with its own position or connection."""
_PLAIN = (str, bytes, bool, int, float, complex, type(None))
_CLOSED = (BuiltinFunctionType, ModuleType, torch.Tensor, np.ndarray, torch.nn.Module, logging.Logger)
_FOREIGN = frozenset({"builtins", "abc", "typing", "torch", "numpy"})
"""Packages whose classes and functions contain no state of a sample."""


def open_handle(dataset: Any) -> str:
    """Return where a dataset holds an open file or connection, and its class; "" if none was found."""
    for path, value in _values(dataset):
        package = type(value).__module__.partition(".")[0]
        if (isinstance(value, io.IOBase) and not value.closed) or package in HANDLES:
            return f"{path} ({type(value).__name__})"
    return ""


def fingerprint(dataset: Any, collate: Any = None) -> dict[str, Any]:
    """Return a fingerprint that changes if a setting of the dataset or collate function changes, or an object they hold."""
    return {path: _token(value) for path, value in (*_values(dataset), *_values(collate, "the collate function"))}


def counted(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Return where a number changed or a list grew between two fingerprints; "" if none did.

    Caches are not counted: a dictionary of samples, or a file that is opened when the first sample is read.
    """
    for path, was in before.items():
        now = after.get(path, was)
        if was == now or not (isinstance(was, tuple) and isinstance(now, tuple)):
            continue
        numbers = was[0] == now[0] == "number"
        if numbers or (isinstance(was[0], _Same) and was[0] == now[0] and was[1] == now[1] == "list" and was[2] < now[2]):
            return path
    return ""


def _token(value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "number", repr(value)
    if isinstance(value, _PLAIN):
        return value if isinstance(value, str | bytes) else repr(value)
    if isinstance(value, torch.Tensor):
        return _Same(value), "tensor", None if value.is_inference() else value._version  # noqa: SLF001 - counts in-place changes
    if isinstance(value, list | tuple | dict | set | frozenset | deque):
        return _Same(value), type(value).__name__, len(value)
    return _Same(value)


class _Same:
    """Equal only for the same object. Weak references tell it from a new object at the same address, where they exist."""

    __hash__ = None  # type: ignore[assignment]  # instances are compared, never used as keys

    def __init__(self, value: Any) -> None:
        self._at = id(value)
        try:
            self._alive: weakref.ref[Any] | None = weakref.ref(value)
        except TypeError:  # plain containers have no weak references; their items are compared too
            self._alive = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Same) or self._at != other._at:
            return False
        if self._alive is None or other._alive is None:
            return self._alive is other._alive
        value = self._alive()
        return value is not None and value is other._alive()


def _values(root: Any, name: str = "the dataset") -> Iterator[tuple[str, Any]]:
    """Yield an object and everything reachable from it, each with its path, outermost first."""
    waiting: deque[tuple[str, Any, int]] = deque([(name, root, 0)])
    visited: set[int] = set()
    count = 0
    while waiting and count < MAX_VALUES:
        path, value, depth = waiting.popleft()
        count += 1
        yield path, value
        if isinstance(value, (*_PLAIN, *_CLOSED)) or id(value) in visited or depth == MAX_DEPTH:
            continue
        visited.add(id(value))
        waiting.extend((f"{path}{name}", held, depth + 1) for name, held in _held(value))


def _held(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [(f"[{key!r}]", value[key]) for key in list(value)[:FIRST_ITEMS]]
    if isinstance(value, list | tuple):
        return [(f"[{at}]", item) for at, item in enumerate(value[:FIRST_ITEMS])]
    if isinstance(value, MethodType):
        return [(".__self__", value.__self__), ("", value.__func__)]
    if isinstance(value, FunctionType):
        return _of_function(value)
    if isinstance(value, type):
        return [(f".{name}", held) for name, held in vars(value).items() if not _foreign(value) and _written(name, held)]
    inherited = {
        name: held for kind in reversed(type(value).__mro__) if not _foreign(kind) for name, held in vars(kind).items()
        if isinstance(held, _PLAIN) and _written(name, held)
    }  # fmt: skip
    held = {**inherited, **getattr(value, "__dict__", {})}
    return [*((f".{name}", held[name]) for name in held), (f".{type(value).__name__}", type(value))]


def _of_function(function: FunctionType) -> list[tuple[str, Any]]:
    """Return the globals that a function uses, and the values of its closure."""
    if _foreign(function):
        return []
    names, cells = function.__code__.co_names, zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    values = [(f" -> {name}", function.__globals__[name]) for name in names if name in function.__globals__]
    for name, cell in cells:
        try:
            values.append((f" -> {name}", cell.cell_contents))
        except ValueError:  # the variable has no value yet
            continue
    return values


def _written(name: str, held: Any) -> bool:
    return isinstance(held, FunctionType) or not (name.startswith("__") and name.endswith("__"))


def _foreign(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).partition(".")[0] in _FOREIGN
