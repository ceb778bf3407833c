"""Walk the tensors of a batch, whatever containers the user put them in.

A batch is a tensor, or any nesting of dicts, lists, tuples, named tuples and dataclasses that holds tensors; everything
else in it (strings, numbers, None) passes through untouched.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch

TensorFn = Callable[[torch.Tensor], torch.Tensor]


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


def padded_length(batch: Any, rows: int) -> int | None:
    """The length that `rows` samples were padded to: the largest second dimension of a tensor `[rows, length, ...]`.

    None where the batch holds no such tensor, as when its samples are not padded rows.
    """
    shapes = (tensor.shape for tensor in iter_tensors(batch) if tensor.dim() > 1)
    return max((shape[1] for shape in shapes if shape[0] == rows), default=None)
