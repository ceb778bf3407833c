"""What a dataset holds: open files, which readers must not share, and what reading its samples changes.

Looked at is what its attributes, its methods, their closures and the globals that they name lead to.
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
MAX_VALUES = 5000
FIRST_ITEMS = 16
"""So many items of a container are looked at."""
HANDLES = frozenset({"h5py", "sqlite3", "zipfile", "tarfile", "socket", "lmdb", "netCDF4", "tables", "psycopg", "psycopg2"})
"""Packages whose objects stand for something open, with a position or a connection of its own."""
_PLAIN = (str, bytes, bool, int, float, complex, type(None))
_CLOSED = (BuiltinFunctionType, ModuleType, torch.Tensor, np.ndarray, torch.nn.Module, logging.Logger)
_FOREIGN = frozenset({"builtins", "abc", "typing", "torch", "numpy"})
"""Packages into whose classes and functions nobody writes what a sample depends on."""


def open_handle(dataset: Any) -> str:
    """Where a dataset holds an open file or connection, and of which class; empty where none was found."""
    for path, value in _values(dataset):
        package = type(value).__module__.partition(".")[0]
        if (isinstance(value, io.IOBase) and not value.closed) or package in HANDLES:
            return f"{path} ({type(value).__name__})"
    return ""


def fingerprint(dataset: Any, collate: Any = None) -> dict[str, Any]:
    """A fingerprint that differs once a setting of the dataset or collate function was changed, or an object they hold."""
    return {path: _token(value) for path, value in (*_values(dataset), *_values(collate, "the collate function"))}


def counted(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Where a number became another, or a list became longer, between two fingerprints; empty where none did.

    What is kept for later (a dictionary of samples, a file that is opened with the first) is not meant.
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
        return _Same(value), "tensor", None if value.is_inference() else value._version  # noqa: SLF001 - counts changes in place
    if isinstance(value, list | tuple | dict | set | frozenset | deque):
        return _Same(value), type(value).__name__, len(value)
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


def _values(root: Any, name: str = "the dataset") -> Iterator[tuple[str, Any]]:
    """An object and what it leads to, the outermost first, with where each stands."""
    waiting: deque[tuple[str, Any, int]] = deque([(name, root, 0)])
    seen: set[int] = set()
    count = 0
    while waiting and count < MAX_VALUES:
        path, value, depth = waiting.popleft()
        count += 1
        yield path, value
        if isinstance(value, (*_PLAIN, *_CLOSED)) or id(value) in seen or depth == MAX_DEPTH:
            continue
        seen.add(id(value))
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
    """The globals that a function names, and what it closes over."""
    if _foreign(function):
        return []
    names, cells = function.__code__.co_names, zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    found = [(f" -> {name}", function.__globals__[name]) for name in names if name in function.__globals__]
    for name, cell in cells:
        try:
            found.append((f" -> {name}", cell.cell_contents))
        except ValueError:  # not given a value yet
            continue
    return found


def _written(name: str, held: Any) -> bool:
    return isinstance(held, FunctionType) or not (name.startswith("__") and name.endswith("__"))


def _foreign(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).partition(".")[0] in _FOREIGN
