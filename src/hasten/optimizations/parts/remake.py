"""Recreate an optimizer with other flags or of another class, with the same groups, rates and defaults."""

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
    """Replace the live job's optimizer by a copy with other flags. The undo restores the old one.

    Args:
        live: The live job. Its optimizer must not have stepped yet.
        technique: Name of the calling optimization, for error messages.
        kinds: Optimizer classes that support these flags, by name. Subclasses may have other update rules and are refused.
        flags: Keyword arguments of the optimizer, set in every group.
        into: Classes of the new optimizer, by the name of the old class. Arguments that their constructors do not accept
            are omitted. None keeps the class.

    Raises:
        JobError: The optimizer is of another class, or has already stepped.
    """
    old = live.optimizer
    kind: Any = type(old)
    if kinds.get(type(old).__name__) is not type(old):
        names = " or ".join(name for name, on in flags.items() if on)
        missing = f"has no {names} implementation" if names else "is not supported"
        raise JobError(f"{type(old).__name__} {missing}: remove {technique} from the plan.")
    if any(_has_stepped(state) for state in old.state.values()):
        raise JobError(f"The optimizer has already stepped: {technique} must be applied before the first update.")
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


def _has_stepped(state: Any) -> bool:
    """Return whether a parameter's state comes from a step. Adagrad creates its state at once, with step 0."""
    return bool(state) and float(state.get("step", 1)) > 0
