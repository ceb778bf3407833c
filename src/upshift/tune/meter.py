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

import psutil

SPOILT_FRAC = 0.06
"""A sample during which others took more than this share of the machine is taken again."""


@dataclass(frozen=True, kw_only=True)
class Account:
    """What a stretch of time cost.

    Attributes:
        seconds: Wall time.
        cpu_seconds: CPU time of this process and its children.
        foreign_cpu_frac: Share of the machine's cores that others used (the hypervisor's steal counts); None if unknown.
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


class Meter:
    """Started when it is made; `read` gives the account since then."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._started = perf_counter()
        self._busy = _busy_seconds(proc)
        self._own = own_cpu_seconds()
        self._faults = resource.getrusage(resource.RUSAGE_SELF)

    def read(self) -> Account:
        """The account since the start."""
        seconds = perf_counter() - self._started
        own = own_cpu_seconds() - self._own
        busy = _busy_seconds(self._proc)
        faults = resource.getrusage(resource.RUSAGE_SELF)
        foreign = None
        if busy is not None and self._busy is not None and seconds > 0:
            foreign = max(busy - self._busy - own, 0.0) / (seconds * (os.cpu_count() or 1))
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
        total += used.user + used.system
    return total


def _busy_seconds(proc: Path) -> float | None:
    """Seconds of all cores not idle since boot, the hypervisor's steal included."""
    try:
        first = (proc / "stat").read_text(encoding="ascii").split("\n", 1)[0].split()
    except OSError:
        return None
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(value) for value in first[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
