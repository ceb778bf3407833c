"""Ends of steps that a loop marks itself, for whoever watches this process. It imports nothing of torch."""

from __future__ import annotations

from collections.abc import Callable

_LISTENERS: list[Callable[[], None]] = []
"""A mark is a word to the process: the loop that says it does not know who listens."""


def step() -> None:
    """Mark the end of a training step; does nothing where nobody watches.

    For loops whose steps cannot be seen from outside: optimizers that are not torch's, weights that are updated by hand.
    From the first mark on a step ends where the loop says so, and at no optimizer's step.
    """
    for listener in (*_LISTENERS,):
        listener()


def listen(listener: Callable[[], None]) -> None:
    """Call `listener` at every mark from now on."""
    _LISTENERS.append(listener)


def unlisten(listener: Callable[[], None]) -> None:
    """Call it no more; nothing where it does not listen."""
    if listener in _LISTENERS:
        _LISTENERS.remove(listener)
