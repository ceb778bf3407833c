"""Let a training loop mark the ends of its steps for all listeners of this process. Does not import torch."""

from __future__ import annotations

from collections.abc import Callable

_LISTENERS: list[Callable[[], None]] = []
"""Global, because the loop that marks a step does not know its listeners."""


def step() -> None:
    """Mark the end of a training step. Does nothing if no one is watching.

    Use it in loops whose steps Hasten cannot detect: optimizers outside torch.optim, or weights that are updated by hand.
    From the first mark on, steps end only at marks and no longer at optimizer steps.
    """
    for listener in (*_LISTENERS,):
        listener()


def listen(listener: Callable[[], None]) -> None:
    """Call `listener` at every mark from now on."""
    _LISTENERS.append(listener)


def unlisten(listener: Callable[[], None]) -> None:
    """Remove a listener. Does nothing if it is not registered."""
    if listener in _LISTENERS:
        _LISTENERS.remove(listener)
