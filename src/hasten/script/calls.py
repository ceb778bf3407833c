"""What a script's model is called with, and what it gives: taken apart into tensors and their places, and compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hasten.core.batch import iter_tensors

TOLERANCES: Mapping[torch.dtype, float] = {torch.float64: 1e-10, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""How far a result may move when its batch is another, of the largest value; `TOLERANCE` for other types."""
TOLERANCE = 1e-4
WORDS = (type(None), bool, str)
_CONSTANTS = (*WORDS, int, float)


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


def tensors_of(batch: Any) -> list[torch.Tensor]:
    """The tensors of a batch in a fixed order; at once for the plain containers that most loaders give."""
    items = batch if type(batch) in (list, tuple) else batch.values() if type(batch) is dict else ()
    found = [item for item in items if isinstance(item, torch.Tensor)]
    return found if found and len(found) == len(items) else list(iter_tensors(batch))


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
