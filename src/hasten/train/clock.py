"""Split the time of an update into phases, for about a tenth of a microsecond a phase.

On a CPU the laps are wall time. On an accelerator the host runs ahead, so the laps are read from events on the device's
own stream after the run, without ever waiting for them inside it; GPU and CPU clocks are never mixed in one share.
"""

from __future__ import annotations

from time import perf_counter
from typing import Protocol

import torch

PHASES = ("data", "transfer", "forward", "backward", "sync", "optimizer", "logging")


class Clock(Protocol):
    """What the loop tells at the end of each phase."""

    def start(self) -> None:
        """Begin an update."""

    def lap(self, phase: str) -> None:
        """Give the time since the last lap to `phase`."""


class NoClock:
    """Measures nothing, costs nothing."""

    def start(self) -> None:
        """Begin an update."""

    def lap(self, phase: str) -> None:
        """End a phase."""


class PhaseClock:
    """Wall time by phase, summed over updates, in seconds.

    Attributes:
        seconds: Phase name -> seconds so far.
        updates: How many updates were timed.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(PHASES, 0.0)
        self.updates = 0
        self._last = 0.0

    @property
    def is_ready(self) -> bool:
        """Whether `seconds` can be had without waiting."""
        return True

    def start(self) -> None:
        """Begin an update."""
        self.updates += 1
        self._last = perf_counter()

    def lap(self, phase: str) -> None:
        """Give the time since the last lap to `phase`."""
        now = perf_counter()
        self.seconds[phase] += now - self._last
        self._last = now


class CudaClock:
    """Device time by phase, read from events once the run is over.

    Attributes:
        updates: How many updates were timed.
    """

    def __init__(self) -> None:
        self.updates = 0
        self._events: list[tuple[str | None, torch.cuda.Event]] = []

    def start(self) -> None:
        """Begin an update."""
        self.updates += 1
        self._mark(None)

    def lap(self, phase: str) -> None:
        """Give the device time since the last lap to `phase`."""
        self._mark(phase)

    @property
    def is_ready(self) -> bool:
        """Whether `seconds` can be had without waiting."""
        return not self._events or self._events[-1][1].query()

    @property
    def seconds(self) -> dict[str, float]:
        """Phase name -> seconds so far; waits for the last event."""
        total = dict.fromkeys(PHASES, 0.0)
        if self._events:
            self._events[-1][1].synchronize()
        for (_, before), (phase, after) in zip(self._events, self._events[1:], strict=False):
            if phase is not None:
                total[phase] += before.elapsed_time(after) / 1000.0
        return total

    def _mark(self, phase: str | None) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._events.append((phase, event))


def make_clock(device: torch.device) -> PhaseClock | CudaClock:
    """The clock that fits the device."""
    return CudaClock() if device.type == "cuda" else PhaseClock()
