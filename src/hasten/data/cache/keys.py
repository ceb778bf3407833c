"""Build keys from everything a value depends on: the inputs, byte for byte, and the code that computes it."""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from hasten.core.errors import DataError
from hasten.core.layouts import raw_bytes, shape_of


def key_of(*parts: Any) -> str:
    """Return a key of 40 hexadecimal digits, equal for equal content in any process and on any machine.

    Args:
        parts: Numbers, strings, bytes, paths (by name), arrays, tensors, Arrow arrays and tables, None, and dicts, lists,
            tuples and sets of them.

    Raises:
        DataError: A part has another type, whose content cannot be hashed.
    """
    digest = hashlib.sha256()
    for part in parts:
        _add(digest, part)
    return digest.hexdigest()[:40]


def code_of(function: Callable[..., Any]) -> str:
    """Return a key for a function's source, its default arguments and the variables it closes over.

    The key changes when the function changes, but not when a function it calls changes. Use a version for that.

    Raises:
        DataError: The source cannot be read, or the function closes over a value whose content cannot be hashed.
    """
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError) as error:
        raise DataError(
            f"the source of {function!r} cannot be read, so changes to it cannot be detected: give version=..."
        ) from error
    inner = inspect.unwrap(function)
    closed = [cell.cell_contents for cell in getattr(inner, "__closure__", None) or ()]
    defaults = (getattr(inner, "__defaults__", None) or (), getattr(inner, "__kwdefaults__", None) or {})
    try:
        return key_of(source, closed, defaults)
    except DataError as error:
        raise DataError(
            f"{function!r} closes over a value that cannot be hashed ({error}): pass it as an argument."
        ) from error


def _add(digest: Any, part: Any) -> None:
    """Hash a part as its kind, its length and its content, so that different parts never produce the same bytes."""
    if part is None or type(part) in {bool, int, float, complex}:
        _put(digest, type(part).__name__, repr(part).encode())
        return
    for kinds, add in _KINDS:
        if isinstance(part, kinds):
            add(digest, part)
            return
    kind = type(part)
    raise DataError(f"a {kind.__module__}.{kind.__qualname__} cannot be hashed: its content is not plain data")


def _add_tensor(digest: Any, part: torch.Tensor) -> None:
    _put(digest, f"tensor {part.dtype} {shape_of(part)}", raw_bytes(part))


def _add_array(digest: Any, part: Any) -> None:
    array = np.ascontiguousarray(part)
    if array.dtype.hasobject:
        raise DataError("an array of objects cannot be hashed: its content is not plain data")
    _put(digest, f"array {array.dtype.str} {np.shape(part)}", array.tobytes())


def _add_arrow(digest: Any, part: Any) -> None:
    kind = part.schema if hasattr(part, "schema") else part.type
    plain = part.as_py() if isinstance(part, pa.Scalar) else part.to_pylist()
    _put(digest, f"arrow {kind}", repr(plain).encode("utf-8", "surrogatepass"))


def _add_mapping(digest: Any, part: Mapping[Any, Any]) -> None:
    _put(digest, f"dict {len(part)}", b"")
    for name in sorted(part, key=repr):
        _add(digest, name)
        _add(digest, part[name])


def _add_sequence(digest: Any, part: Any) -> None:
    _put(digest, f"{'list' if isinstance(part, list) else 'tuple'} {len(part)}", b"")
    for item in part:
        _add(digest, item)


_KINDS: tuple[tuple[Any, Callable[[Any, Any], None]], ...] = (
    (str, lambda digest, part: _put(digest, "str", part.encode("utf-8", "surrogatepass"))),
    ((bytes, bytearray, memoryview), lambda digest, part: _put(digest, "bytes", bytes(part))),
    (os.PathLike, lambda digest, part: _put(digest, "path", os.fsencode(part))),
    (torch.Tensor, _add_tensor),
    ((np.ndarray, np.generic), _add_array),
    ((pa.Table, pa.RecordBatch, pa.Array, pa.Scalar), _add_arrow),
    (Mapping, _add_mapping),
    ((list, tuple), _add_sequence),
    ((set, frozenset), lambda digest, part: _put(digest, f"set {len(part)}", "".join(sorted(map(key_of, part))).encode())),
)
"""Types that can be part of a key, with the function that hashes each."""


def _put(digest: Any, kind: str, data: bytes) -> None:
    digest.update(f"{kind}\0{len(data)}\0".encode())
    digest.update(data)
