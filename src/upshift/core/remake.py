"""Make an optimizer anew with other flags: the same class, groups, rates and defaults."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch.optim import Optimizer

from upshift.core.errors import JobError
from upshift.core.live import LiveJob, Undo


def remake_optimizer(live: LiveJob, technique: str, kinds: Mapping[str, type[Optimizer]], flags: Mapping[str, bool]) -> Undo:
    """Replace the live job's optimizer by its like with other flags; the undo puts the old one back.

    Args:
        live: The live job; its optimizer must not have stepped yet.
        technique: The optimization that asks, for the messages.
        kinds: The classes that take these flags, by name; a class derived from one may have another rule and is refused.
        flags: Keyword arguments of the optimizer, set in every group.

    Raises:
        JobError: The optimizer is of another class, or has stepped.
    """
    old = live.optimizer
    kind: Any = type(old)
    if kinds.get(type(old).__name__) is not type(old):
        words = " or ".join(name for name, on in flags.items() if on)
        raise JobError(f"{type(old).__name__} has no {words} kernel: take {technique} out of the plan.")
    if any(_has_stepped(kept) for kept in old.state.values()):
        raise JobError(f"The optimizer has stepped already: {technique} must be applied before the first update.")
    accepted = inspect.signature(kind).parameters
    defaults = {name: value for name, value in old.defaults.items() if name in accepted}
    live.optimizer = kind([{**group, **flags} for group in old.param_groups], **{**defaults, **flags})

    def undo() -> None:
        live.optimizer = old
        live.rebuild_schedule()

    return undo


def _has_stepped(kept: Any) -> bool:
    """Whether a parameter's state comes from a step; Adagrad's is there from the start, at step 0."""
    return bool(kept) and float(kept.get("step", 1)) > 0
