"""Measure the overhead of the seams under the conditions of training: with cold caches.

In a tight loop a seam takes a third of its time in training, where layers run between two seams. So each measured call
follows a read of a few megabytes.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from hasten.script.patches import guarded

CALLS = 100
"""Number of measured calls."""
_FOREIGN_NUMBERS = 2**20
"""Number of 4-byte values that are read before each call: more than the caches of one core hold."""
_known: list[tuple[float, float]] = []


class Clock(Protocol):
    """The part of `Recorder` that a seam uses."""

    passed: int

    def free(self) -> bool:
        """Return whether a seam starts a phase."""

    def enter(self, phase: int, /) -> Any:
        """Start a phase."""

    def leave(self) -> Any:
        """End the phase."""


def of_seams(make: Callable[[], Clock]) -> tuple[float, float]:
    """Return the seconds of a seam that records a phase and of one that records nothing. Measured once per process.

    Args:
        make: Creates a separate clock for the measurement.
    """
    if not _known:
        _known.append((noting_s(make()), passing_s(make())))
    return _known[0]


def noting_s(clock: Clock) -> float:
    """Return the seconds of a seam that records a phase."""

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
    """Return the seconds of a seam inside a phase, which records nothing."""
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
    """Return the median of single calls, each with cold caches."""
    foreign, taken = np.ones(_FOREIGN_NUMBERS, np.float32), []
    for _ in range(CALLS):
        foreign.sum()
        started = perf_counter()
        function()
        taken.append(perf_counter() - started)
    return median(taken)
