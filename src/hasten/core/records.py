"""Convert a sample to bytes and back without pickle: a JSON header that describes it, then the raw numbers.

A record holds CPU tensors, NumPy arrays and scalars, numbers, strings, booleans and None, in any nesting of dicts, lists and
tuples. It contains no code, so reading a damaged record can at worst return wrong numbers. Memory order is kept (such as
channels-last), because it can decide which kernel runs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

ALIGNMENT = 64
"""Alignment in bytes of each array's start, counted from the end of the header: one cache line."""

_PLAIN = (bool, int, float, str)
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}


def encode(sample: Any) -> bytes:
    """Return the record of a sample.

    Raises:
        TypeError: The sample contains an object that is not plain data. Names its type.
    """
    arrays: list[bytes] = []
    size = 0

    def add(raw: bytes) -> int:
        nonlocal size
        start = size
        padded = raw + b"\0" * (-len(raw) % ALIGNMENT)
        arrays.append(padded)
        size += len(padded)
        return start

    def node(value: Any) -> Any:
        kind = type(value)
        if value is None or kind in _PLAIN:
            return value
        if kind is dict:
            return ["dict", [[node(key), node(item)] for key, item in value.items()]]
        if kind is list or kind is tuple:
            return [kind.__name__, [node(item) for item in value]]
        if kind is torch.Tensor:
            return _tensor_node(value, add)
        if kind is np.ndarray or isinstance(value, np.generic):
            return _array_node(value, add)
        raise TypeError(f"a {kind.__module__}.{kind.__qualname__} is not plain data")

    header = json.dumps(node(sample), separators=(",", ":")).encode("ascii")
    header += b" " * (-(8 + len(header)) % ALIGNMENT)
    return len(header).to_bytes(8, "little") + header + b"".join(arrays)


def decode(record: bytearray) -> Any:
    """Return the sample of a record. Its tensors and arrays are writable and share the record's memory."""
    start = 8 + int.from_bytes(record[:8], "little")
    body = memoryview(record)[start:]

    def value(node: Any) -> Any:
        if not isinstance(node, list):
            return node
        kind, *rest = node
        if kind == "dict":
            return {value(key): value(item) for key, item in rest[0]}
        if kind in ("list", "tuple"):
            items = [value(item) for item in rest[0]]
            return items if kind == "list" else tuple(items)
        return _tensor(body, rest) if kind == "tensor" else _array(body, rest, scalar=kind == "scalar")

    return value(json.loads(record[8:start]))


def _tensor_node(tensor: torch.Tensor, add: Any) -> list[Any]:
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.is_quantized or tensor.requires_grad:
        raise TypeError(f"a tensor must be dense, on the CPU and without a gradient, not {tensor.layout} on {tensor.device}")
    order = _memory_order(tensor.stride())
    laid = tensor.resolve_conj().resolve_neg().permute(order).contiguous()
    raw = laid.reshape(-1).view(torch.uint8).numpy().tobytes()
    return ["tensor", str(tensor.dtype).removeprefix("torch."), list(laid.shape), list(order), add(raw), len(raw)]


def _tensor(body: memoryview, node: Sequence[Any]) -> torch.Tensor:
    dtype, shape, order, start, size = node
    if size == 0:
        flat = torch.empty(0, dtype=_DTYPES[dtype])
    else:
        flat = torch.frombuffer(body[start : start + size], dtype=_DTYPES[dtype])
    return flat.view(shape).permute(_inverse(order))


def _array_node(array: Any, add: Any) -> list[Any]:
    kind = "scalar" if isinstance(array, np.generic) else "array"
    array = np.asarray(array)
    if array.dtype.hasobject or array.dtype.names is not None:
        raise TypeError(f"an array of {array.dtype} is not plain data")
    order = _memory_order(array.strides)
    laid = np.ascontiguousarray(array.transpose(order))
    raw = laid.tobytes()
    shape = [array.shape[dim] for dim in order]  # not `laid.shape`: ascontiguousarray turns a scalar into a 1-d array
    return [kind, array.dtype.str, shape, list(order), add(raw), len(raw)]


def _array(body: memoryview, node: Sequence[Any], *, scalar: bool) -> Any:
    dtype, shape, order, start, size = node
    raw = body[start : start + size]
    flat = np.frombuffer(raw, dtype=np.dtype(dtype)) if size else np.empty(0, dtype=np.dtype(dtype))
    array = flat.reshape(shape).transpose(_inverse(order))
    return array[()] if scalar else array


def _memory_order(strides: Sequence[int]) -> tuple[int, ...]:
    """Return the dimensions ordered from the longest stride to the shortest."""
    return tuple(sorted(range(len(strides)), key=lambda dim: (-abs(strides[dim]), dim)))


def _inverse(order: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(range(len(order)), key=order.__getitem__))
