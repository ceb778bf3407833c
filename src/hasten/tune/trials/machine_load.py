"""Account for a stretch of time: our CPU seconds, page faults, and the cores that somebody else took meanwhile.

The share of CPU time tracked wall time in measurements on shared machines, and shows when a neighbour, not the change,
was at work. Linux only; elsewhere the foreign share is unknown (None) and no sample counts as spoilt.
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
"""A sample during which others took more than this share of the machine is taken again."""

LEAST_TICKS = 2
"""CPU time is counted in ticks of a hundredth of a second; ours and everybody's may each be one off."""


@dataclass(frozen=True, kw_only=True)
class Account:
    """What a stretch of time cost.

    Attributes:
        seconds: Wall time.
        cpu_seconds: CPU time of this process and its children.
        foreign_cpu_frac: Share of the cores we may use that others took (the hypervisor's steal counts); None if unknown, as
            over a stretch too short for the kernel's ticks.
        major_faults: Page faults that read from disk, of this process.
        minor_faults: Page faults served from memory, of this process.
    """

    seconds: float
    cpu_seconds: float
    foreign_cpu_frac: float | None
    major_faults: int
    minor_faults: int

    @property
    def spoilt(self) -> bool:
        """Whether a neighbour took too much of the machine."""
        return self.foreign_cpu_frac is not None and self.foreign_cpu_frac > SPOILT_FRAC

    def to_dict(self) -> dict[str, Any]:
        """As a part of a trial's answer, without the wall time."""
        return {
            "cpu_seconds": self.cpu_seconds,
            "foreign_cpu_frac": self.foreign_cpu_frac,
            "major_faults": self.major_faults,
            "minor_faults": self.minor_faults,
            "spoilt": self.spoilt,
        }


class Meter:
    """Started when it is made; `read` gives the account since then."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc, self._cores = proc, allowed_cores()
        self._started = perf_counter()
        self._busy = _busy_seconds(proc, self._cores)
        self._own = own_cpu_seconds()
        self._faults = resource.getrusage(resource.RUSAGE_SELF)

    def read(self) -> Account:
        """The account since the start."""
        seconds = perf_counter() - self._started
        own = own_cpu_seconds() - self._own
        busy = _busy_seconds(self._proc, self._cores)
        faults = resource.getrusage(resource.RUSAGE_SELF)
        foreign = None
        offered = seconds * len(self._cores)
        # In a shorter stretch the ticks are coarser than the share that would spoil it: nothing can be said.
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
    """CPU seconds of this process and all its children, living and gone."""
    times = os.times()
    total = times.user + times.system + times.children_user + times.children_system
    for child in psutil.Process().children(recursive=True):
        try:
            used = child.cpu_times()
        except psutil.Error:  # it ended between the listing and the reading; its time is then among the children gone
            continue
        # Of a child's own children that are gone, as loader workers are after an epoch, only it knows (Linux says so).
        total += used.user + used.system + getattr(used, "children_user", 0.0) + getattr(used, "children_system", 0.0)
    return total


def allowed_cores() -> frozenset[int]:
    """The cores this process may run on; a neighbour on any other core takes nothing from it."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def begin_on(core: int, *, beside: int = 0) -> None:
    """Move this thread to a core, and let the scheduler do as it likes from there; nothing where it is bound already.

    Two processes that take turns may sit on two cores for good, one of which a neighbour of the host slows down.

    Args:
        core: Which one.
        beside: So many cores further on, in a circle: ranks that run at once begin on cores of their own.
    """
    if not hasattr(os, "sched_setaffinity"):
        return
    allowed = os.sched_getaffinity(0)
    if core in allowed and len(allowed) > 1:
        cores = sorted(allowed)
        os.sched_setaffinity(0, {cores[(cores.index(core) + beside) % len(cores)]})
        os.sched_setaffinity(0, allowed)


def _busy_seconds(proc: Path, cores: frozenset[int]) -> float | None:
    """Seconds that `cores` were not idle since boot, the hypervisor's steal included; None where nobody says."""
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
