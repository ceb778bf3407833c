"""Split a batch along its samples, so that a step only needs the memory of one part."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from hasten.core.batch import iter_tensors, map_tensors
from hasten.core.errors import JobError
from hasten.core.layouts import is_dense
from hasten.core.packing import Packing

_OUT = "remove it from the plan"


def split_batch(batch: Any, size: int, parts: int) -> list[tuple[Any, int]]:
    """Split a batch of `size` samples into at most `parts` pieces of similar size, each with its number of samples.

    Tensors `[size, ...]` are split along their first dimension (as views, without copies), and so are lists of `size`
    strings or numbers. Scalar tensors, strings, numbers and None go into every piece.

    Raises:
        JobError: The batch is packed, has no tensor of samples, or has a tensor whose first dimension is not the samples.
    """
    if _is_packed(batch):
        raise JobError(f"microbatch cannot split a packed batch, because its samples are in one row: {_OUT}.")
    tensors = list(iter_tensors(batch))
    for tensor in tensors:
        if not is_dense(tensor):
            kind = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
            raise JobError(f"microbatch cannot split this batch, because it has a {kind} tensor: {_OUT}.")
    shapes = [tuple(tensor.shape) for tensor in tensors if tensor.dim() > 0]
    other = next((shape for shape in shapes if shape[0] != size), None)
    if other is not None:
        raise JobError(
            f"microbatch cannot split this batch of {size} samples: it has a tensor of shape {other}, whose first "
            f"dimension is not the samples: {_OUT}."
        )
    if not shapes:
        raise JobError(f"microbatch cannot split this batch: it has no tensor whose first dimension is the samples: {_OUT}.")
    step = -(-size // parts)
    bounds = [(begin, min(begin + step, size)) for begin in range(0, size, step)]
    return [(_cut(batch, size, begin, end), end - begin) for begin, end in bounds]


def _cut(batch: Any, size: int, begin: int, end: int) -> Any:
    tensors = map_tensors(batch, lambda tensor: tensor[begin:end] if tensor.dim() > 0 else tensor)
    return _cut_lists(tensors, size, begin, end)


def _cut_lists(batch: Any, size: int, begin: int, end: int) -> Any:
    """Split lists of strings and numbers. Tensors are already split."""
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
