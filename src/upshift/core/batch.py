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


def padded_length(batch: Any) -> int | None:
    """The length that the samples of a batch were padded to: the largest second dimension; None without one."""
    return max((tensor.shape[1] for tensor in iter_tensors(batch) if tensor.dim() > 1), default=None)
