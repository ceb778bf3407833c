"""Walk the tensors of a batch, whatever containers the user put them in, and find its padding.

A batch is a tensor, or any nesting of dicts, lists, tuples, named tuples and dataclasses that holds tensors; everything
else in it (strings, numbers, None) passes through untouched.

Padding can be found without knowing the job where a batch holds rows of integers, `[rows, length]`: token ids, masks and
labels of padded texts. Columns at their end that hold one value each, the same in every row, are padding.
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
"""Stands for one where the rest of a sample is pickled: the same in every process, as a tensor's own pickle is not."""
LEAST_ROWS, LEAST_LENGTH = 2, 16
"""Fewer rows may agree by chance; what is shorter is no sequence."""
_DIMS = 2


def map_tensors(batch: Any, fn: TensorFn) -> Any:
    """Return `batch` with `fn` applied to each tensor, containers rebuilt in kind."""
    if isinstance(batch, torch.Tensor):
        return fn(batch)
    if isinstance(batch, Mapping):
        items = {key: map_tensors(value, fn) for key, value in batch.items()}
        if type(batch) is dict or not isinstance(batch, MutableMapping):
            return items
        rebuilt = copy.copy(batch)  # keeps what else it holds, as a tokenizer's encoding does
        rebuilt.update(items)
        return rebuilt
    if isinstance(batch, tuple):
        parts = [map_tensors(value, fn) for value in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else tuple(parts)
    if isinstance(batch, list):
        return [map_tensors(value, fn) for value in batch]
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        mapped = copy.copy(batch)  # not dataclasses.replace, which refuses fields that __init__ does not take
        for field in dataclasses.fields(batch):
            object.__setattr__(mapped, field.name, map_tensors(getattr(batch, field.name), fn))
        return mapped
    return batch


def iter_tensors(batch: Any) -> Iterator[torch.Tensor]:
    """Yield each tensor of `batch` in a fixed order."""
    found: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    map_tensors(batch, note)
    yield from found


def batch_bytes(batch: Any) -> int:
    """Bytes held by the tensors of `batch`."""
    return sum(tensor.numel() * tensor.element_size() for tensor in iter_tensors(batch))


def content(sample: Any) -> tuple[list[tuple[str, tuple[int, ...], bytes]], bytes]:
    """What a sample holds, by value: a pickled tensor would drag its whole storage along, with its address."""
    tensors = [tensor.detach().cpu().contiguous() for tensor in iter_tensors(sample)]
    values = [(str(t.dtype), tuple(t.shape), t.reshape(-1).view(torch.uint8).numpy().tobytes()) for t in tensors]
    return values, pickle.dumps(map_tensors(sample, lambda _: _A_TENSOR))


def padded_length(batch: Any, rows: int) -> int | None:
    """The length that `rows` samples were padded to: the largest second dimension of a tensor `[rows, length, ...]`.

    None where the batch holds no such tensor, as when its samples are not padded rows.
    """
    shapes = (tensor.shape for tensor in iter_tensors(batch) if tensor.dim() > 1)
    return max((shape[1] for shape in shapes if shape[0] == rows), default=None)


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
