"""CPU of the training and its child processes, and of everything else on the cores that it may use."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from hasten.monitor.metric import Card, Metric
from hasten.monitor.rates import PROC, Changes, needed
from hasten.monitor.sampler import Host

_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


class Cpu:
    """Reads /proc once for each window: the totals of the cores, and one line of each process."""

    card: ClassVar[Card] = Card(
        name="cpu",
        source="/proc/stat, /proc/loadavg, /proc/PROCESS/stat",
        needs="Linux",
        metrics=(
            Metric(name="process.cpu", unit="{cpu}", help="Cores that the training uses, with its child processes."),
            Metric(name="process.memory.tree", unit="By", help="Resident memory of the training and its child processes."),
            Metric(name="process.processes", unit="{process}", help="Processes of the training, its own included."),
            Metric(name="process.threads", unit="{thread}", help="Threads of all these processes."),
            Metric(name="process.page_faults.minor", unit="{fault}/s", help="Page faults served from memory."),
            Metric(name="process.page_faults.major", unit="{fault}/s", help="Page faults that read from a disk."),
            Metric(name="system.cpu.others", unit="{cpu}", help="Cores used by others, of those that the training may use."),
            Metric(name="system.cpu.io_wait", unit="1", help="Share of the cores' time that is idle and waits for a disk."),
            Metric(name="system.cpu.steal", unit="1", help="Share of the cores' time that the hypervisor gave to others."),
            Metric(name="system.load", unit="1", help="Load average over a minute: runnable and waiting tasks."),
        ),
    )

    def __init__(self, host: Host, proc: Path = PROC) -> None:
        self._proc, self._pid = proc, os.getpid()
        needed(proc / "stat")
        self._changes = Changes()

    def sample(self) -> Mapping[str, float]:
        """Return the metrics since the last call."""
        cores = os.sched_getaffinity(0)
        counters, gauges = self._tree()
        seconds, changes = self._changes.since(counters | self._cores(cores))
        values = gauges | {"system.load": float((self._proc / "loadavg").read_text().split()[0])}
        if "own" not in changes:
            return values
        offered = seconds * len(cores)
        return values | {
            "process.cpu": changes["own"] / seconds,
            "process.page_faults.minor": changes["minor"] / seconds,
            "process.page_faults.major": changes["major"] / seconds,
            "system.cpu.others": max(changes["busy"] - changes["own"], 0.0) / seconds,
            "system.cpu.io_wait": changes["io_wait"] / offered,
            "system.cpu.steal": changes["steal"] / offered,
        }

    def _cores(self, cores: set[int]) -> dict[str, float]:
        """Return the seconds of the cores since boot: busy (steal included), waiting for a disk, stolen."""
        busy = io_wait = steal = 0
        for line in (self._proc / "stat").read_text(encoding="ascii").splitlines():
            name, *values = line.split()
            if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores:
                user, nice, system, _idle, waiting, irq, softirq, stolen = (int(value) for value in values[:8])
                busy += user + nice + system + irq + softirq + stolen
                io_wait += waiting
                steal += stolen
        return {"busy": busy / _TICKS, "io_wait": io_wait / _TICKS, "steal": steal / _TICKS}

    def _tree(self) -> tuple[dict[str, float], dict[str, float]]:
        """Return the counters and the gauges of this process and its descendants."""
        stats, children = dict[int, list[str]](), dict[int, list[int]]()
        for folder in self._proc.iterdir():
            if folder.name.isdigit():
                try:
                    text = (folder / "stat").read_text(encoding="utf-8", errors="replace")
                except OSError:  # it ended meanwhile
                    continue
                fields = text.rpartition(")")[2].split()  # the name before it may hold spaces
                stats[int(folder.name)] = fields
                children.setdefault(int(fields[1]), []).append(int(folder.name))
        tree, waiting = list[list[str]](), [self._pid]
        while waiting:
            pid = waiting.pop()
            if pid in stats:
                tree.append(stats[pid])
                waiting += children.get(pid, [])
        # Fields 11 to 14: CPU time of a process, and of its children that have ended.
        counters = {
            "own": sum(int(value) for fields in tree for value in fields[11:15]) / _TICKS,
            "minor": float(sum(int(fields[7]) + int(fields[8]) for fields in tree)),
            "major": float(sum(int(fields[9]) + int(fields[10]) for fields in tree)),
        }
        gauges = {
            "process.memory.tree": float(sum(int(fields[21]) for fields in tree) * _PAGE),
            "process.processes": float(len(tree)),
            "process.threads": float(sum(int(fields[17]) for fields in tree)),
        }
        return counters, gauges
