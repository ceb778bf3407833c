"""Measure the machine load over a stretch of time: own CPU seconds, page faults, and the cores that other processes used.

On shared machines the share of CPU time tracks wall time, and shows when another process, not the change, caused a
difference. Linux only; elsewhere the foreign share is unknown (None) and no sample counts as disturbed.
"""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import psutil

SPOILT_FRAC = 0.06
"""A sample is repeated if other processes used more than this share of the machine."""

LEAST_TICKS = 2
"""CPU time is counted in ticks of 10 ms; the own and the total count may each be off by one tick."""


@dataclass(frozen=True, kw_only=True)
class Account:
    """The machine load over a stretch of time.

    Attributes:
        seconds: Wall time.
        cpu_seconds: CPU time of this process and its children.
        foreign_cpu_frac: Share of the allowed cores that other processes used, including steal time of the hypervisor. None
            if unknown, as over a stretch too short for the kernel's ticks.
        major_faults: Page faults of this process that read from disk.
        minor_faults: Page faults of this process that were served from memory.
    """

    seconds: float
    cpu_seconds: float
    foreign_cpu_frac: float | None
    major_faults: int
    minor_faults: int

    @property
    def spoilt(self) -> bool:
        """Whether other processes used too much of the machine."""
        return self.foreign_cpu_frac is not None and self.foreign_cpu_frac > SPOILT_FRAC

    def to_dict(self) -> dict[str, Any]:
        """Return it as part of a trial's answer, without the wall time."""
        return {
            "cpu_seconds": self.cpu_seconds,
            "foreign_cpu_frac": self.foreign_cpu_frac,
            "major_faults": self.major_faults,
            "minor_faults": self.minor_faults,
            "spoilt": self.spoilt,
        }


class Meter:
    """Starts measuring when it is created; `read` returns the load since then."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc, self._cores = proc, allowed_cores()
        self._started = perf_counter()
        self._busy = _busy_seconds(proc, self._cores)
        self._own = own_cpu_seconds()
        self._faults = resource.getrusage(resource.RUSAGE_SELF)

    def read(self) -> Account:
        """Return the machine load since the start."""
        seconds = perf_counter() - self._started
        own = own_cpu_seconds() - self._own
        busy = _busy_seconds(self._proc, self._cores)
        faults = resource.getrusage(resource.RUSAGE_SELF)
        foreign = None
        offered = seconds * len(self._cores)
        # Over a shorter stretch the ticks are too coarse for the limit, so the share is unknown.
        if busy is not None and self._busy is not None and offered * SPOILT_FRAC >= LEAST_TICKS / os.sysconf("SC_CLK_TCK"):
            foreign = max(busy - self._busy - own, 0.0) / offered
        return Account(
            seconds=seconds,
            cpu_seconds=own,
            foreign_cpu_frac=foreign,
            major_faults=faults.ru_majflt - self._faults.ru_majflt,
            minor_faults=faults.ru_minflt - self._faults.ru_minflt,
        )


def own_cpu_seconds() -> float:
    """Return the CPU seconds of this process and all its children, including ended ones."""
    times = os.times()
    total = times.user + times.system + times.children_user + times.children_system
    for child in psutil.Process().children(recursive=True):
        try:
            used = child.cpu_times()
        except psutil.Error:  # it ended meanwhile; its time is then part of the ended children's
            continue
        # Ended children of a child, such as loader workers after an epoch, are only counted in the child (on Linux).
        total += used.user + used.system + getattr(used, "children_user", 0.0) + getattr(used, "children_system", 0.0)
    return total


def allowed_cores() -> frozenset[int]:
    """Return the cores this process may run on. Processes on other cores do not disturb it."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def begin_on(core: int, *, offset: int = 0) -> None:
    """Move this thread to a core, from where the scheduler may move it again. Does nothing if the thread is pinned.

    Two processes that take turns may otherwise stay on different cores, one of which other guests of the host slow down.

    Args:
        core: The core.
        offset: Distance to the core, wrapping around, so that ranks that run at once start on different cores.
    """
    if not hasattr(os, "sched_setaffinity"):
        return
    allowed = os.sched_getaffinity(0)
    if core in allowed and len(allowed) > 1:
        cores = sorted(allowed)
        os.sched_setaffinity(0, {cores[(cores.index(core) + offset) % len(cores)]})
        os.sched_setaffinity(0, allowed)


def _busy_seconds(proc: Path, cores: frozenset[int]) -> float | None:
    """Return the non-idle seconds of `cores` since boot, including steal time of the hypervisor; None if unknown."""
    try:
        lines = (proc / "stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    busy = 0
    for line in lines:
        name, *values = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores:
            user, nice, system, _idle, _iowait, irq, softirq, steal = (int(value) for value in values[:8])
            busy += user + nice + system + irq + softirq + steal
    return busy / os.sysconf("SC_CLK_TCK")
