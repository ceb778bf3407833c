"""Main memory of the training process, and what is left of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from hasten.core.machine import CGROUP, read_memory_room
from hasten.monitor.metric import Card, Metric
from hasten.monitor.rates import PROC, needed
from hasten.monitor.sampler import Host


class Memory:
    """Reads /proc/self/status. It does not walk the memory map: `smaps` would hold up large processes."""

    card: ClassVar[Card] = Card(
        name="memory",
        source="/proc/self/status, /proc/meminfo, the control group",
        needs="Linux",
        metrics=(
            Metric(name="process.memory.resident", unit="By", help="Resident memory of the training process."),
            Metric(name="process.memory.private", unit="By", help="Its anonymous memory: what it has allocated itself."),
            Metric(name="process.memory.shared", unit="By", help="Its shared memory, such as batches of loader workers."),
            Metric(name="process.memory.swapped", unit="By", help="Its memory that was swapped out."),
            Metric(name="system.memory.available", unit="By", help="Memory that the machine has left."),
            Metric(name="system.memory.headroom", unit="By", help="Memory left to the training: the machine's and the "
                   "control group's limit, whichever is nearer."),
        ),
    )  # fmt: skip

    def __init__(self, host: Host, proc: Path = PROC, cgroup: Path = CGROUP) -> None:
        self._proc, self._cgroup = proc, cgroup
        needed(proc / "self" / "status")

    def sample(self) -> Mapping[str, float]:
        """Return the current values."""
        own = _kilobytes(self._proc / "self" / "status")
        machine = _kilobytes(self._proc / "meminfo")
        available = machine["MemAvailable"]
        return {
            "process.memory.resident": own["VmRSS"],
            "process.memory.private": own["RssAnon"],
            "process.memory.shared": own["RssShmem"],
            "process.memory.swapped": own.get("VmSwap", 0.0),
            "system.memory.available": available,
            "system.memory.headroom": min([available, *read_memory_room(proc=self._proc, cgroup=self._cgroup)]),
        }


def _kilobytes(path: Path) -> dict[str, float]:
    """Return the sizes in a file with lines such as `VmRSS:  12 kB`, in bytes."""
    lines = (line.split() for line in path.read_text(encoding="utf-8", errors="replace").splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024.0 for words in lines if len(words) == 3 and words[2] == "kB"}
