"""Walk the tensors of a batch in any nesting of containers, and detect its padding.

A batch is a tensor, or any nesting of containers that hold tensors: see `hasten.core.containers`. Everything else (strings,
numbers, None) is passed through unchanged.

Padding is detected in integer tensors `[rows, length]`: token ids, masks and labels of padded texts. Trailing columns that
hold the same single value in every row are padding. No knowledge of the job is needed.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from typing import Any

import torch

from hasten.core.containers import map_tensors
from hasten.core.layouts import is_dense, num_bytes, raw_bytes, shape_of

__all__ = ["batch_bytes", "content", "cut_at", "iter_tensors", "kept_length", "map_tensors", "padded_length", "tails"]

LEAST_ROWS, LEAST_LENGTH = 2, 16
"""Minimum size of a tensor of padded rows: fewer rows may agree by chance, and shorter rows are not sequences."""
_DIMS = 2


def iter_tensors(batch: Any) -> Iterator[torch.Tensor]:
    """Yield each tensor of `batch` once, in the order of `map_tensors`."""
    tensors: list[torch.Tensor] = []

    def collect(tensor: torch.Tensor) -> torch.Tensor:
        tensors.append(tensor)
        return tensor

    map_tensors(batch, collect)
    yield from tensors


def batch_bytes(batch: Any) -> int:
    """Return the total size of the tensors of `batch` in bytes."""
    return sum(num_bytes(tensor) for tensor in iter_tensors(batch))


def content(sample: Any) -> tuple[list[tuple[str, tuple[int, ...], bytes]], bytes]:
    """Return the values of a sample in comparable form.

    Tensors are not pickled: a pickled tensor includes its whole storage and its address.
    """
    tensors: list[torch.Tensor] = []

    class Rest(pickle.Pickler):
        def persistent_id(self, item: Any) -> str | None:
            if not isinstance(item, torch.Tensor):
                return None
            tensors.append(item)
            return "a tensor"

    rest = io.BytesIO()
    Rest(rest).dump(sample)
    return [(str(tensor.dtype), shape_of(tensor), raw_bytes(tensor)) for tensor in tensors], rest.getvalue()


def padded_length(batch: Any, rows: int) -> int | None:
    """Return the length that `rows` samples were padded to: the largest second dimension of a tensor `[rows, length, ...]`.

    Return None if the batch holds no such tensor, for example because its samples are not padded rows.
    """
    shapes = (tensor.shape for tensor in iter_tensors(batch) if is_dense(tensor) and tensor.dim() > 1)
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
        if not is_dense(tensor) or tensor.dim() < _DIMS or tensor.shape[1] != length:
            return tensor
        return tensor[:, :keep].contiguous()  # the script may call view() on it

    return map_tensors(batch, cut)


def tails(batch: Any, length: int, keep: int) -> list[Any] | None:
    """Return the padding value of each tensor `[rows, length, ...]`: the value of all positions from `keep` on.

    Return None if these positions of a tensor hold different values, or if another dimension has the same length, as in a
    mask over pairs of positions.
    """
    values: list[Any] = []
    for tensor in filter(is_dense, iter_tensors(batch)):
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
    return (
        whole
        and is_dense(tensor)
        and tensor.dim() == _DIMS
        and tensor.shape[0] >= LEAST_ROWS
        and tensor.shape[1] >= LEAST_LENGTH
    )


def _kept(rows: torch.Tensor) -> int:
    """Count the columns up to the last one that differs from the final value of the first row."""
    used = (rows != rows[0, -1]).any(dim=0).nonzero()
    return int(used[-1]) + 1 if len(used) else 0
