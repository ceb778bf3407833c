"""Split the time of an update into phases, with an overhead of about 0.1 microseconds per phase.

On a CPU, laps are wall time. On an accelerator, the host runs ahead, so laps are read from events on the device's stream
after the run, without waiting for them during the run. GPU and CPU clocks are never mixed in one share.

A run times only some of its updates (`SampledClock`). Their number follows from the overhead of timing an update and the
time of an update, so that the total overhead stays within a share of the training time. They are chosen at random: timing
every tenth update, for example, would either always or never hit those that read the loss.
"""

from __future__ import annotations

from collections import deque
from random import Random
from time import perf_counter
from typing import Protocol

import torch

PHASES = ("data", "transfer", "forward", "backward", "sync", "optimizer", "logging")
COST_FRAC = 0.001
"""Largest share of the training time that timing may take."""
_SKIPPED = 2
"""Number of first updates that are not timed: they select kernels and allocate memory."""
_CALIBRATED = 20
"""Number of updates simulated to measure the overhead of timing one."""
_WAITING = 8
"""Largest number of timed updates on an accelerator that may wait for their last event."""


class Clock(Protocol):
    """The interface through which the loop reports the end of each phase."""

    def start(self) -> None:
        """Begin an update."""

    def lap(self, phase: str) -> None:
        """Add the time since the last lap to `phase`."""


class NoClock:
    """A clock that measures nothing and has no overhead."""

    def start(self) -> None:
        """Begin an update."""

    def lap(self, phase: str) -> None:
        """End a phase."""


class PhaseClock:
    """Wall time by phase, summed over updates, in seconds.

    Attributes:
        seconds: Phase name -> seconds so far.
        updates: Number of timed updates.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(PHASES, 0.0)
        self.updates = 0
        self._last = 0.0

    @property
    def is_ready(self) -> bool:
        """Whether `seconds` can be read without waiting."""
        return True

    def start(self) -> None:
        """Begin an update."""
        self.updates += 1
        self._last = perf_counter()

    def lap(self, phase: str) -> None:
        """Add the time since the last lap to `phase`."""
        now = perf_counter()
        self.seconds[phase] += now - self._last
        self._last = now


class CudaClock:
    """Device time by phase, read from events after the run.

    Attributes:
        updates: Number of timed updates.
    """

    def __init__(self) -> None:
        self.updates = 0
        self._events: list[tuple[str | None, torch.cuda.Event]] = []

    def start(self) -> None:
        """Begin an update."""
        self.updates += 1
        self._mark(None)

    def lap(self, phase: str) -> None:
        """Add the device time since the last lap to `phase`."""
        self._mark(phase)

    @property
    def is_ready(self) -> bool:
        """Whether `seconds` can be read without waiting."""
        return not self._events or self._events[-1][1].query()

    @property
    def seconds(self) -> dict[str, float]:
        """Phase name -> seconds so far. Waits for the last event."""
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
    """Return a clock for the device."""
    return CudaClock() if device.type == "cuda" else PhaseClock()


class SampledClock:
    """A clock for the loop that times a random sample of the updates.

    Args:
        device: The device of the model.
        cost_frac: Largest share of the training time that timing may take.
        cost_s: Overhead of timing one update, in seconds; measured unless given.

    Attributes:
        cost_s: Overhead of timing one update, in seconds.
        gap: Average number of updates from one timed update to the next.
        updates: Number of timed updates.
    """

    def __init__(self, device: torch.device, *, cost_frac: float = COST_FRAC, cost_s: float | None = None) -> None:
        self._device, self._cost_frac = device, cost_frac
        self.cost_s = _cost_s(device) if cost_s is None else cost_s
        self._random = Random(0)  # noqa: S311  the choice of timed updates needs no cryptographic randomness
        self._left = _SKIPPED + 1
        self._now: PhaseClock | CudaClock | None = None
        self._ended: deque[PhaseClock | CudaClock] = deque(maxlen=_WAITING)
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._taken = dict(self._seconds)
        self.gap = 1
        self.updates = 0

    def start(self) -> None:
        """Begin an update."""
        if self._now is not None:
            self._end()
        self._left -= 1
        if self._left <= 0:
            self._left = self._random.randint(1, 2 * self.gap - 1)
            self._now = make_clock(self._device)
            self._now.start()

    def lap(self, phase: str) -> None:
        """End a phase."""
        if self._now is not None:
            self._now.lap(phase)

    def take_shares(self) -> dict[str, float]:
        """Return each phase's share of the updates timed since the last call; empty if none. Call it between updates."""
        self._end()
        since = {name: seconds - self._taken[name] for name, seconds in self._seconds.items()}
        self._taken = dict(self._seconds)
        whole = sum(since.values())
        return {name: round(seconds / whole, 4) for name, seconds in since.items() if seconds} if whole else {}

    def so_far(self) -> tuple[int, dict[str, float]]:
        """Return the number of timed updates, and their seconds by phase. Call it between updates."""
        self._end()
        return self.updates, dict(self._seconds)

    def _end(self) -> None:
        """End the timing of an update."""
        if self._now is not None:
            self._ended.append(self._now)
            self._now = None
        self._collect()

    def _collect(self) -> None:
        """Add up the finished measurements, without waiting for the device."""
        while self._ended and self._ended[0].is_ready:
            seconds = self._ended.popleft().seconds
            for phase, value in seconds.items():
                self._seconds[phase] += value
            self.updates += 1
            update_s = max(sum(seconds.values()), 1e-9)
            self.gap = 1 + int(self.cost_s / (self._cost_frac * update_s))


def _cost_s(device: torch.device) -> float:
    """Measure the overhead of timing one update on this machine, in seconds."""
    started = perf_counter()
    for _ in range(_CALIBRATED):
        clock = make_clock(device)
        clock.start()
        for phase in PHASES:
            clock.lap(phase)
    return (perf_counter() - started) / _CALIBRATED
