"""Make an optimizer anew, with other flags or of another class: the same groups, rates and defaults."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch.optim import Optimizer

from hasten.core.errors import JobError
from hasten.core.live import LiveJob
from hasten.core.seams import Undo


def remake_optimizer(
    live: LiveJob,
    technique: str,
    kinds: Mapping[str, type[Optimizer]],
    flags: Mapping[str, bool],
    into: Mapping[str, Callable[..., Optimizer]] | None = None,
) -> Undo:
    """Replace the live job's optimizer by its like with other flags; the undo puts the old one back.

    Args:
        live: The live job; its optimizer must not have stepped yet.
        technique: The optimization that asks, for the messages.
        kinds: The classes that take these flags, by name; a class derived from one may have another rule and is refused.
        flags: Keyword arguments of the optimizer, set in every group.
        into: Classes to make instead, by the name of the old one; what their constructor does not take is left out. None
            keeps the class.

    Raises:
        JobError: The optimizer is of another class, or has stepped.
    """
    old = live.optimizer
    kind: Any = type(old)
    if kinds.get(type(old).__name__) is not type(old):
        words = " or ".join(name for name, on in flags.items() if on)
        wanted = f"{words} kernel" if words else "other form"
        raise JobError(f"{type(old).__name__} has no {wanted}: take {technique} out of the plan.")
    if any(_has_stepped(kept) for kept in old.state.values()):
        raise JobError(f"The optimizer has stepped already: {technique} must be applied before the first update.")
    make = kind if into is None else into[type(old).__name__]
    accepted = inspect.signature(make).parameters
    dropped = (inspect.signature(kind).parameters.keys() - accepted.keys()) - {"params"}
    groups = [{key: value for key, value in group.items() if key not in dropped} for group in old.param_groups]
    defaults = {name: value for name, value in old.defaults.items() if name in accepted}
    live.optimizer = make([{**group, **flags} for group in groups], **{**defaults, **flags})

    def undo() -> None:
        live.optimizer = old
        live.rebuild_schedule()

    return undo


def _has_stepped(kept: Any) -> bool:
    """Whether a parameter's state comes from a step; Adagrad's is there from the start, at step 0."""
    return bool(kept) and float(kept.get("step", 1)) > 0
