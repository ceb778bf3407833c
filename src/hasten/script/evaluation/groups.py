"""Batches of an evaluation joined into one call of the model, and what it gives taken apart again. Pure functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hasten.core.batch import iter_tensors, map_tensors
from hasten.script.calls import WORDS, ApartError


def rows_of(tensors: Sequence[torch.Tensor], numbers: Sequence[int]) -> int:
    """Samples of a batch, by the tensors that the model takes.

    Raises:
        ApartError: They do not say.
    """
    found = [tensors[number] for number in numbers]
    if any(tensor.layout is not torch.strided or not tensor.dim() or tensor.device.type != "cpu" for tensor in found):
        raise ApartError("the model takes tensors that are no rows of samples in the CPU's memory")
    rows = {len(tensor) for tensor in found}
    if len(rows) != 1 or 0 in rows:
        raise ApartError("the tensors that the model takes have no length in common")
    return rows.pop()


def marks_of(tensors: Sequence[torch.Tensor]) -> list[int] | None:
    """Torch's own marks of changes in place; None where a tensor was made in inference mode, and has none."""
    try:
        return [tensor._version for tensor in tensors]  # noqa: SLF001 - torch has no other name for it
    except RuntimeError:
        return None


def alike(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor], numbers: Sequence[int]) -> bool:
    """Whether two batches have the same number of samples, of the same shapes and types, as far as the model takes them."""
    if len(one) != len(other):
        return False
    pairs = ((one[number], other[number]) for number in numbers)
    return all(a.shape == b.shape and a.dtype is b.dtype and a.device == b.device for a, b in pairs)


def joined(batches: Sequence[Sequence[torch.Tensor]], numbers: Sequence[int]) -> list[torch.Tensor]:
    """The tensors of several batches one behind the other; those that the model does not take are left as the first has."""
    first = list(batches[0])
    for number in set(numbers):
        first[number] = torch.cat([tensors[number] for tensors in batches])
    return first


def parted(output: Any, rows: Sequence[int]) -> list[Any]:
    """What a call on several batches gave, for each of them.

    Args:
        output: Every tensor `[sum(rows), ...]`, in any nesting.
        rows: Samples of each batch.

    Raises:
        ApartError: It holds something that is not a row for each sample.
    """
    total = sum(rows)
    if isinstance(output, torch.Tensor) and output.dim() and len(output) == total:
        return list(output.split(list(rows)))
    _check_output(output)
    if not all(tensor.dim() and len(tensor) == total for tensor in iter_tensors(output)):
        raise ApartError("what the model gives is not a row for each sample")
    found, start = [], 0
    for count in rows:
        found.append(map_tensors(output, lambda tensor, start=start, count=count: tensor[start : start + count]))  # type: ignore[misc]  # bound now
        start += count
    return found


def _check_output(value: Any) -> None:
    if isinstance(value, torch.Tensor) or type(value) in WORDS:
        return
    if isinstance(value, Mapping):
        items: Any = value.values()
    elif isinstance(value, list | tuple):
        items = value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        items = [getattr(value, field.name) for field in dataclasses.fields(value)]
    else:
        raise ApartError(f"the model gives a {type(value).__name__}, which is no row for each sample")
    for item in items:
        _check_output(item)
