"""What the seams of a watched script take of their own, timed as training meets them: with other things in the caches.

In a loop of its own a seam takes a third of what it takes amid training, where a pass over some layers lies between two of
them. So each is timed once after a few megabytes were read.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from hasten.script.patches import guarded

CALLS = 100
_FOREIGN_NUMBERS = 2**20
"""Of four bytes, read between two timings: more than what caches keep for one core."""
_known: list[tuple[float, float]] = []


class Clock(Protocol):
    """As `Recorder`."""

    passed: int

    def free(self) -> bool:
        """Whether a seam begins a phase."""

    def enter(self, phase: int, /) -> Any:
        """Begin one."""

    def leave(self) -> Any:
        """End it."""


def of_seams(make: Callable[[], Clock]) -> tuple[float, float]:
    """Seconds of a seam that notes a phase, and of one that notes nothing; measured once in a process.

    Args:
        make: Makes a clock that nothing else uses.
    """
    if not _known:
        _known.append((noting_s(make()), passing_s(make())))
    return _known[0]


def noting_s(clock: Clock) -> float:
    """Seconds of a seam that notes a phase."""

    def make(original: Callable[[], None]) -> Callable[[], None]:
        def seam() -> None:
            if not clock.free():
                return original()
            clock.enter(0)
            try:
                return original()
            finally:
                clock.leave()

        return seam

    seam = guarded(make, _nothing, lambda _: None)
    return max(_typical(seam) - _typical(_nothing), 0.0)


def passing_s(clock: Clock) -> float:
    """Seconds of a seam around something that belongs to the phase which is under way."""
    clock.enter(0)

    def original(*_args: Any, **_kwargs: Any) -> None:
        return None

    def seam(*args: Any, **kwargs: Any) -> None:
        if not clock.free():
            clock.passed += 1
            return original(*args, **kwargs)
        return None

    return max(_typical(lambda: seam(clock)) - _typical(lambda: original(clock)), 0.0)


def _nothing() -> None:
    return None


def _typical(function: Callable[[], Any]) -> float:
    """The median of single calls, each after much else was read."""
    foreign, taken = np.ones(_FOREIGN_NUMBERS, np.float32), []
    for _ in range(CALLS):
        foreign.sum()
        started = perf_counter()
        function()
        taken.append(perf_counter() - started)
    return median(taken)
