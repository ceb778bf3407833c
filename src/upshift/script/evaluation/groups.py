"""Batches of an evaluation joined into one call of the model, and what it gives taken apart again. Pure functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from upshift.core.batch import iter_tensors, map_tensors

TOLERANCES: Mapping[torch.dtype, float] = {torch.float64: 1e-10, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""How far a result may move when its batch is another, of the largest value; `TOLERANCE` for other types."""
TOLERANCE = 1e-4
_WORDS = (type(None), bool, str)
_CONSTANTS = (*_WORDS, int, float)


class ApartError(Exception):
    """Batches of this kind cannot be joined, or their results not be taken apart; says why, in words that follow a colon."""


@dataclasses.dataclass(frozen=True)
class Slot:
    """Stands for a tensor of the batch, by its number in it."""

    number: int


@dataclasses.dataclass(frozen=True)
class Constant:
    """Something that is no tensor."""

    kind: type
    value: Any


def slots_of(given: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """The structure of what a model is called with, its tensors replaced by their places in the batch.

    Args:
        given: Arguments, in any nesting of lists, tuples and dicts.
        tensors: Those of the batch, in its order.

    Raises:
        ApartError: There is something in it that is neither a tensor of the batch itself nor a constant.
    """
    if isinstance(given, torch.Tensor):
        for number, tensor in enumerate(tensors):
            if given is tensor:
                return Slot(number)
        raise ApartError("the model is called with tensors that are made of the batch")
    if type(given) in _CONSTANTS:
        return Constant(type(given), given)
    if type(given) in (list, tuple):
        return [type(given), *(slots_of(item, tensors) for item in given)]
    if type(given) is dict:
        return {name: slots_of(item, tensors) for name, item in given.items()}
    raise ApartError(f"the model is called with a {type(given).__name__}")


def filled(slots: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """What `slots_of` took apart, with other tensors in the places."""
    if isinstance(slots, Slot):
        return tensors[slots.number]
    if isinstance(slots, Constant):
        return slots.value
    if isinstance(slots, dict):
        return {name: filled(item, tensors) for name, item in slots.items()}
    kind, *items = slots
    return kind(filled(item, tensors) for item in items)


def used(slots: Any) -> list[int]:
    """Numbers of the tensors that the model is called with."""
    if isinstance(slots, Slot):
        return [slots.number]
    if isinstance(slots, Constant):
        return []
    items = slots.values() if isinstance(slots, dict) else slots[1:]
    return [number for item in items for number in used(item)]


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


def tensors_of(batch: Any) -> list[torch.Tensor]:
    """The tensors of a batch in a fixed order; at once for the plain containers that most loaders give."""
    items = batch if type(batch) in (list, tuple) else batch.values() if type(batch) is dict else ()
    found = [item for item in items if isinstance(item, torch.Tensor)]
    return found if found and len(found) == len(items) else list(iter_tensors(batch))


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
    if isinstance(value, torch.Tensor) or type(value) in _WORDS:
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


def difference(one: Any, other: Any) -> str:
    """In what two results of the same batch differ by more than rounding; empty where they do not."""
    a, b = list(iter_tensors(one)), list(iter_tensors(other))
    if type(one) is not type(other) or len(a) != len(b):
        return "it gives other containers"
    for first, second in zip(a, b, strict=True):
        if first.shape != second.shape or first.dtype != second.dtype:
            return f"it gives {tuple(second.shape)} and not {tuple(first.shape)}"
        if not first.is_floating_point():
            if not torch.equal(first, second):
                return "whole numbers that it gives are others"
            continue
        finite = first.isfinite()
        if not torch.equal(finite, second.isfinite()):
            return "numbers that it gives are not finite any more, or were not"
        scale = float(first[finite].abs().max()) if finite.any() else 0.0
        moved = float((first[finite] - second[finite]).abs().max()) if finite.any() else 0.0
        if moved > TOLERANCES.get(first.dtype, TOLERANCE) * max(scale, 1e-12):
            return f"numbers that it gives move by {moved:.2g} of {scale:.2g}"
    return ""
