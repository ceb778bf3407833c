"""Compare two readings of a sample bit for bit."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

from hasten.core.seeding import RandomState

MAX_DEPTH = 40
"""Nesting depth beyond which values count as different."""
_WHOLE = (bool, int, set, frozenset)
_BY_IDENTITY = (type, FunctionType, ModuleType, torch.dtype, torch.layout, torch.memory_format)


def difference(one: Any, other: Any, at: str = "it") -> str:
    """Describe where two values differ; "" if they are bitwise equal.

    Values that cannot be compared count as different. Objects are compared by what pickle would save of them.

    Args:
        one: Tensors, arrays, numbers, strings, or objects and containers of them.
        other: The same value, read again.
        at: Name of the values in the description.
    """
    try:
        return _differ(one, other, at, 0)
    except Exception as error:  # noqa: BLE001 - classes of the user may raise any error: they cannot be compared
        return f"{at} cannot be compared ({type(error).__name__}: {error})"


def _differ(one: Any, other: Any, at: str, depth: int) -> str:
    if type(one) is not type(other):
        return f"{at} has class {type(one).__name__}, then {type(other).__name__}"
    if depth > MAX_DEPTH:
        return f"{at} is nested too deeply to compare"
    if one is None or isinstance(one, str | bytes | bytearray) or type(one) in _WHOLE:
        return "" if one == other else f"{at} differs"
    if isinstance(one, _BY_IDENTITY):
        return "" if one is other else f"{at} is a different {type(one).__name__}"
    if type(one) in (float, complex):
        return "" if _bits(one) == _bits(other) else f"{at} differs"
    if isinstance(one, torch.Tensor) and one.layout is torch.strided and not one.is_quantized:
        return _tensors(one, other, at, depth)
    if isinstance(one, np.ndarray | np.generic):
        return _arrays(np.asarray(one), np.asarray(other), at, depth)
    if type(one) is dict:
        return _mappings(one, other, at, depth)
    if type(one) in (list, tuple):
        return _items(one, other, at, depth)
    return _objects(one, other, at, depth)


def _bits(number: complex) -> bytes:
    return struct.pack("dd", number.real, number.imag)


def _tensors(one: torch.Tensor, other: torch.Tensor, at: str, depth: int) -> str:
    for name in ("dtype", "shape", "device", "requires_grad"):
        if getattr(one, name) != getattr(other, name):
            return f"the {name} of {at} differs"
    first, second = (_bytes(tensor) for tensor in (one, other))
    if first.device != second.device or not torch.equal(first, second):
        return f"{at} differs"
    return _mappings(getattr(one, "__dict__", {}), getattr(other, "__dict__", {}), at, depth)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.detach().resolve_conj().resolve_neg()
    return plain.as_subclass(torch.Tensor).contiguous().reshape(-1).view(torch.uint8)


def _arrays(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any], at: str, depth: int) -> str:
    if one.dtype != other.dtype or one.shape != other.shape:
        return f"dtype or shape of {at} differs"
    if one.dtype.hasobject:
        return _differ(one.tolist(), other.tolist(), at, depth + 1)
    return "" if one.tobytes() == other.tobytes() else f"{at} differs"


def _mappings(one: Mapping[Any, Any], other: Mapping[Any, Any], at: str, depth: int) -> str:
    if list(one) != list(other):
        return f"the keys of {at} differ"
    differences = (_differ(value, other[key], f"{at}[{key!r}]", depth + 1) for key, value in one.items())
    return next(filter(None, differences), "")


def _items(one: Any, other: Any, at: str, depth: int) -> str:
    if len(one) != len(other):
        return f"the length of {at} differs"
    pairs = enumerate(zip(one, other, strict=True))
    differences = (_differ(mine, theirs, f"{at}[{key}]", depth + 1) for key, (mine, theirs) in pairs)
    return next(filter(None, differences), "")


def _objects(one: Any, other: Any, at: str, depth: int) -> str:
    """Compare what pickle would save of two objects: their constructor, its arguments, and their state."""
    return _differ(_reduced(one), _reduced(other), at, depth + 1)


def _reduced(value: Any) -> Any:
    parts = value.__reduce_ex__(2)
    if isinstance(parts, str):  # the name of a global object: there is only one
        return (parts, id(value))
    makes = getattr(parts[0], "__qualname__", "")
    return [makes, *(part if number < 2 or part is None else list(part) for number, part in enumerate(parts[1:]))]


def moved_generator(before: RandomState, after: RandomState) -> str:
    """Return the name of the random generator whose state has changed; "" if none has."""
    if before[0] != after[0]:
        return "random"
    if any(not np.array_equal(mine, theirs) for mine, theirs in zip(before[1], after[1], strict=True)):
        return "numpy.random"
    return "" if torch.equal(before[2], after[2]) else "torch"
