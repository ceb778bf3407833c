"""The measured cost of a seam is its own cost, not that of the clock around it."""

from __future__ import annotations

import time

from hasten.script.watch import overhead
from hasten.script.watch.record import Recorder

SEAM_S = 2e-4


class _Slow:
    """A clock with slow seams."""

    passed = 0

    def __init__(self, *, free: bool) -> None:
        self._free = free

    def free(self) -> bool:
        time.sleep(SEAM_S)
        return self._free

    def enter(self, _phase: int, /) -> None:
        return None

    def leave(self) -> None:
        return None


def test_a_slow_seam_is_seen_to_be_slow() -> None:
    assert SEAM_S <= overhead.noting_s(_Slow(free=True)) < 50 * SEAM_S
    clock = _Slow(free=False)
    assert SEAM_S <= overhead.passing_s(clock) < 50 * SEAM_S
    assert clock.passed == overhead.CALLS


def test_the_seams_of_the_real_clock_cost_microseconds() -> None:
    noting, passing = overhead.of_seams(lambda: Recorder(updates=0, seconds=0.0))
    assert 0 < noting < 1e-3
    assert 0 <= passing < 1e-3
    assert overhead.of_seams(lambda: Recorder(updates=0, seconds=0.0)) == (noting, passing)
