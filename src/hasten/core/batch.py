"""Walk the tensors of a batch in any nesting of containers, and detect its padding.

A batch is a tensor, or any nesting of dicts, lists, tuples, named tuples and dataclasses that holds tensors. Everything
else (strings, numbers, None) is passed through unchanged.

Padding is detected in integer tensors `[rows, length]`: token ids, masks and labels of padded texts. Trailing columns that
hold the same single value in every row are padding. No knowledge of the job is needed.
"""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch

TensorFn = Callable[[torch.Tensor], torch.Tensor]

_A_TENSOR: Any = b"a tensor"
"""Placeholder for tensors when the rest of a sample is pickled. A tensor's own pickle differs between processes."""
LEAST_ROWS, LEAST_LENGTH = 2, 16
"""Minimum size of a tensor of padded rows: fewer rows may agree by chance, and shorter rows are not sequences."""
_DIMS = 2


def map_tensors(batch: Any, fn: TensorFn) -> Any:
    """Return `batch` with `fn` applied to each tensor. Containers keep their types."""
    if isinstance(batch, torch.Tensor):
        return fn(batch)
    if isinstance(batch, Mapping):
        items = {key: map_tensors(value, fn) for key, value in batch.items()}
        if type(batch) is dict or not isinstance(batch, MutableMapping):
            return items
        rebuilt = copy.copy(batch)  # keeps its other attributes, such as those of a tokenizer's encoding
        rebuilt.update(items)
        return rebuilt
    if isinstance(batch, tuple):
        parts = [map_tensors(value, fn) for value in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else tuple(parts)
    if isinstance(batch, list):
        return [map_tensors(value, fn) for value in batch]
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        mapped = copy.copy(batch)  # dataclasses.replace rejects fields with init=False
        for field in dataclasses.fields(batch):
            object.__setattr__(mapped, field.name, map_tensors(getattr(batch, field.name), fn))
        return mapped
    return batch


def iter_tensors(batch: Any) -> Iterator[torch.Tensor]:
    """Yield each tensor of `batch` in a fixed order."""
    tensors: list[torch.Tensor] = []

    def collect(tensor: torch.Tensor) -> torch.Tensor:
        tensors.append(tensor)
        return tensor

    map_tensors(batch, collect)
    yield from tensors


def batch_bytes(batch: Any) -> int:
    """Return the total size of the tensors of `batch` in bytes."""
    return sum(tensor.numel() * tensor.element_size() for tensor in iter_tensors(batch))


def content(sample: Any) -> tuple[list[tuple[str, tuple[int, ...], bytes]], bytes]:
    """Return the values of a sample in comparable form.

    Tensors are not pickled: a pickled tensor includes its whole storage and its address.
    """
    tensors = [tensor.detach().cpu().contiguous() for tensor in iter_tensors(sample)]
    values = [(str(t.dtype), tuple(t.shape), t.reshape(-1).view(torch.uint8).numpy().tobytes()) for t in tensors]
    return values, pickle.dumps(map_tensors(sample, lambda _: _A_TENSOR))


def padded_length(batch: Any, rows: int) -> int | None:
    """Return the length that `rows` samples were padded to: the largest second dimension of a tensor `[rows, length, ...]`.

    Return None if the batch holds no such tensor, for example because its samples are not padded rows.
    """
    shapes = (tensor.shape for tensor in iter_tensors(batch) if tensor.dim() > 1)
    return max((shape[1] for shape in shapes if shape[0] == rows), default=None)


def kept_length(batch: Any) -> tuple[int, int] | None:
    """Return the unpadded length and the full length of the longest integer rows.

    Return None if the batch holds no integer rows, or if they consist of padding only.
    """
    rows = [tensor for tensor in iter_tensors(batch) if _are_rows(tensor)]
    length = max((tensor.shape[1] for tensor in rows), default=0)
    kept = max((_kept(tensor) for tensor in rows if tensor.shape[1] == length), default=0)
    return (kept, length) if kept else None


def cut_at(batch: Any, length: int, keep: int) -> Any:
    """Return the batch with every tensor `[rows, length, ...]` cut to its first `keep` positions. Other tensors are kept."""

    def cut(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() < _DIMS or tensor.shape[1] != length:
            return tensor
        return tensor[:, :keep].contiguous()  # the script may call view() on it

    return map_tensors(batch, cut)


def tails(batch: Any, length: int, keep: int) -> list[Any] | None:
    """Return the padding value of each tensor `[rows, length, ...]`: the value of all positions from `keep` on.

    Return None if these positions of a tensor hold different values, or if another dimension has the same length, as in a
    mask over pairs of positions.
    """
    values: list[Any] = []
    for tensor in iter_tensors(batch):
        if length in tensor.shape[_DIMS:]:
            return None
        if tensor.dim() < _DIMS or tensor.shape[1] != length:
            continue
        tail = tensor[:, keep:]
        value = tail.reshape(-1)[0]
        if not bool((tail == value).all()):
            return None
        values.append(value.item())
    return values


def _are_rows(tensor: torch.Tensor) -> bool:
    whole = not (tensor.is_floating_point() or tensor.is_complex())
    return whole and tensor.dim() == _DIMS and tensor.shape[0] >= LEAST_ROWS and tensor.shape[1] >= LEAST_LENGTH


def _kept(rows: torch.Tensor) -> int:
    """Count the columns up to the last one that differs from the final value of the first row."""
    used = (rows != rows[0, -1]).any(dim=0).nonzero()
    return int(used[-1]) + 1 if len(used) else 0
