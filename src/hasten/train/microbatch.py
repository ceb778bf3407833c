"""Split a batch along its samples, so that a step needs the memory of one part at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from hasten.core.batch import iter_tensors, map_tensors
from hasten.core.errors import JobError
from hasten.core.packing import Packing

_OUT = "take it out of the plan"


def split_batch(batch: Any, size: int, parts: int) -> list[tuple[Any, int]]:
    """Cut a batch of `size` samples into at most `parts` pieces of like size, each with its number of samples.

    Tensors `[size, ...]` are cut along their first dimension (views, nothing is copied), lists of `size` strings or
    numbers likewise; scalar tensors, strings, numbers and None go into every piece.

    Raises:
        JobError: The batch is packed, holds no tensor of samples, or a tensor whose first dimension is not the samples.
    """
    if _is_packed(batch):
        raise JobError(f"microbatch cannot cut a packed batch, whose samples lie in one row: {_OUT}.")
    shapes = [tuple(tensor.shape) for tensor in iter_tensors(batch) if tensor.dim() > 0]
    other = next((shape for shape in shapes if shape[0] != size), None)
    if other is not None:
        raise JobError(
            f"microbatch cannot cut this batch of {size} samples: it holds a tensor of shape {other}, whose first "
            f"dimension is not the samples: {_OUT}."
        )
    if not shapes:
        raise JobError(f"microbatch cannot cut this batch: it holds no tensor whose first dimension is its samples: {_OUT}.")
    step = -(-size // parts)
    bounds = [(at, min(at + step, size)) for at in range(0, size, step)]
    return [(_cut(batch, size, begin, end), end - begin) for begin, end in bounds]


def _cut(batch: Any, size: int, begin: int, end: int) -> Any:
    tensors = map_tensors(batch, lambda tensor: tensor[begin:end] if tensor.dim() > 0 else tensor)
    return _cut_lists(tensors, size, begin, end)


def _cut_lists(batch: Any, size: int, begin: int, end: int) -> Any:
    """Cut lists of what is no tensor; tensors are cut already."""
    if isinstance(batch, list) and len(batch) == size and all(isinstance(item, str | int | float) for item in batch):
        return batch[begin:end]
    if type(batch) in (list, tuple):
        return type(batch)(_cut_lists(item, size, begin, end) for item in batch)
    if type(batch) is dict:
        return {key: _cut_lists(value, size, begin, end) for key, value in batch.items()}
    return batch


def _is_packed(batch: Any) -> bool:
    if isinstance(batch, Packing):
        return True
    if isinstance(batch, torch.Tensor):
        return False
    if isinstance(batch, Mapping):
        return any(_is_packed(value) for value in batch.values())
    if isinstance(batch, list | tuple):
        return any(_is_packed(item) for item in batch)
    if dataclasses.is_dataclass(batch):
        return any(_is_packed(getattr(batch, field.name)) for field in dataclasses.fields(batch))
    return False
