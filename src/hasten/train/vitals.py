"""How a run is doing, for next to nothing: where its updates spend their time, from samples of them, and its memory.

Only some updates are timed. How many is chosen from two things that are measured here, what timing one costs and how long
one takes, so that all of it stays within a share of the training time. Which ones is drawn, from a generator of its own: a
fixed distance would meet every tenth update, the one that reads the loss, always or never.
"""

from __future__ import annotations

from collections import deque
from random import Random
from time import perf_counter

import psutil
import torch

from hasten.train.clock import PHASES, CudaClock, PhaseClock, make_clock

COST_FRAC = 0.001
"""Share of the training time that timing may take."""
_SKIPPED = 2
"""Updates at the start that say nothing: kernels are chosen and memory is fetched in them."""
_CALIBRATED = 20
_WAITING = 8
"""Timed updates of an accelerator that may be waiting for their last event."""


class SampledClock:
    """A clock for the loop that times an update now and then.

    Args:
        device: Where the model lives.
        cost_frac: Share of the training time that timing may take.
        cost_s: What timing one update costs; measured unless given.

    Attributes:
        cost_s: What timing one update costs.
        gap: Updates from one that is timed to the next, on average.
        updates: How many were timed.
    """

    def __init__(self, device: torch.device, *, cost_frac: float = COST_FRAC, cost_s: float | None = None) -> None:
        self._device, self._cost_frac = device, cost_frac
        self.cost_s = _cost_s(device) if cost_s is None else cost_s
        self._random = Random(0)  # noqa: S311  which updates are timed is no secret
        self._left = _SKIPPED + 1
        self._now: PhaseClock | CudaClock | None = None
        self._ended: deque[PhaseClock | CudaClock] = deque(maxlen=_WAITING)
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self.gap = 1
        self.updates = 0

    def start(self) -> None:
        """Begin an update."""
        if self._now is not None:
            self._ended.append(self._now)
            self._now = None
            self._collect()
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
        """The phases' shares of the updates timed since the last call; empty where none was. Call it between updates."""
        if self._now is not None:
            self._ended.append(self._now)
            self._now = None
        self._collect()
        whole = sum(self._seconds.values())
        shares = {name: round(seconds / whole, 4) for name, seconds in self._seconds.items() if seconds} if whole else {}
        self._seconds = dict.fromkeys(PHASES, 0.0)
        return shares

    def _collect(self) -> None:
        """Add up what is known by now; a device that runs behind is not waited for."""
        while self._ended and self._ended[0].is_ready:
            seconds = self._ended.popleft().seconds
            for phase, value in seconds.items():
                self._seconds[phase] += value
            self.updates += 1
            update_s = max(sum(seconds.values()), 1e-9)
            self.gap = 1 + int(self.cost_s / (self._cost_frac * update_s))


class Memory:
    """The memory that this process holds.

    Args:
        device: Where the model lives.
    """

    def __init__(self, device: torch.device) -> None:
        self._process, self._device = psutil.Process(), device

    def host_bytes(self) -> int:
        """Main memory, as the system counts it; loader workers count for themselves."""
        return int(self._process.memory_info().rss)

    def device_bytes(self) -> int | None:
        """Memory of the GPU that torch has reserved; None where none is used."""
        return torch.cuda.memory_reserved(self._device) if self._device.type == "cuda" else None


def _cost_s(device: torch.device) -> float:
    """Seconds that timing one update takes on this machine."""
    started = perf_counter()
    for _ in range(_CALIBRATED):
        clock = make_clock(device)
        clock.start()
        for phase in PHASES:
            clock.lap(phase)
    return (perf_counter() - started) / _CALIBRATED
