"""Padding that can be seen from outside: positions at the end of a batch of numbers that are the same in all its rows.

Rows of whole numbers, `[rows, length]`, are what token ids, masks and labels of padded texts look like. A run of columns at
their end that hold one value each, the same for every row, is computed for nothing.
"""

from __future__ import annotations

from typing import Any

import torch

from hasten.core.batch import iter_tensors, map_tensors

LEAST_ROWS, LEAST_LENGTH = 2, 16
"""Fewer rows may agree by chance; what is shorter is no sequence."""
_DIMS = 2


def kept_length(batch: Any) -> tuple[int, int] | None:
    """How many positions of the longest rows of whole numbers hold something, and how many there are.

    None where the batch holds no rows of whole numbers, or where all of them are alike.
    """
    rows = [tensor for tensor in iter_tensors(batch) if _are_rows(tensor)]
    length = max((tensor.shape[1] for tensor in rows), default=0)
    kept = max((_kept(tensor) for tensor in rows if tensor.shape[1] == length), default=0)
    return (kept, length) if kept else None


def cut_at(batch: Any, length: int, keep: int) -> Any:
    """The batch with the first `keep` positions of every tensor `[rows, length, ...]`; other tensors as they are."""

    def cut(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() < _DIMS or tensor.shape[1] != length:
            return tensor
        return tensor[:, :keep].contiguous()  # the script may call view() on it

    return map_tensors(batch, cut)


def tails(batch: Any, length: int, keep: int) -> list[Any] | None:
    """The value of the positions from `keep` on, of each tensor `[rows, length, ...]`.

    None where they are not one value in a tensor, or where another dimension is as long: a mask of pairs of positions.
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
    """Columns up to the last one that differs from the value at the end of the first row."""
    used = (rows != rows[0, -1]).any(dim=0).nonzero()
    return int(used[-1]) + 1 if len(used) else 0
