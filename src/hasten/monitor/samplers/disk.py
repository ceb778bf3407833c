"""Reading and writing: by the training, by the machine's disks, and how long a request takes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from hasten.monitor.metric import Card, Metric
from hasten.monitor.rates import PROC, Changes, needed
from hasten.monitor.sampler import Host

_SECTOR = 512
_VIRTUAL = ("loop", "ram", "zram", "dm-", "md", "sr", "fd")
"""Devices that are no disks, or whose requests are counted in another device too."""
_FIELDS = ("reads", "_", "read_sectors", "read_ms", "writes", "_", "written_sectors", "write_ms", "_", "busy_ms")


class Disk:
    """Adds up the disks of the machine."""

    card: ClassVar[Card] = Card(
        name="disk",
        source="/proc/diskstats, /proc/self/io, statvfs of the run's folder",
        needs="Linux",
        metrics=(
            Metric(name="process.disk.read", unit="By/s", help="Bytes that the training process reads from disks."),
            Metric(name="process.disk.write", unit="By/s", help="Bytes that the training process writes to disks."),
            Metric(name="process.io.read", unit="By/s", help="Bytes that it reads, from the page cache or a disk."),
            Metric(name="system.disk.read", unit="By/s", help="Bytes read from the machine's disks."),
            Metric(name="system.disk.write", unit="By/s", help="Bytes written to the machine's disks."),
            Metric(name="system.disk.operations", unit="{operation}/s", help="Requests to the machine's disks."),
            Metric(name="system.disk.read_latency", unit="s", help="Seconds that a read takes, queue included."),
            Metric(name="system.disk.write_latency", unit="s", help="Seconds that a write takes, queue included."),
            Metric(name="system.disk.busy", unit="1", help="Share of the time in which the busiest disk works."),
            Metric(name="system.disk.free", unit="By", help="Bytes free on the disk of the run's folder."),
        ),
    )

    def __init__(self, host: Host, proc: Path = PROC) -> None:
        self._proc, self._folder = proc, host.folder
        needed(proc / "diskstats")
        self._own, self._disks = Changes(), Changes()

    def sample(self) -> Mapping[str, float]:
        """Return the metrics since the last call."""
        values = self._of_process() | self._of_disks()
        if self._folder.exists():
            place = os.statvfs(self._folder)
            values["system.disk.free"] = float(place.f_bavail * place.f_frsize)
        return values

    def _of_process(self) -> dict[str, float]:
        try:
            lines = (self._proc / "self" / "io").read_text(encoding="ascii").splitlines()
        except PermissionError:  # in some containers
            return {}
        rates = self._own.rates({name: float(value) for name, _, value in (line.partition(": ") for line in lines)})
        names = {"process.disk.read": "read_bytes", "process.disk.write": "write_bytes", "process.io.read": "rchar"}
        return {name: rates[field] for name, field in names.items() if field in rates}

    def _of_disks(self) -> dict[str, float]:
        counters: dict[str, float] = {}
        for line in (self._proc / "diskstats").read_text(encoding="ascii").splitlines():
            _major, _minor, disk, *numbers = line.split()
            if disk.startswith(_VIRTUAL) or _is_partition(disk, counters):
                continue
            counters |= {f"{disk} {field}": float(number) for field, number in zip(_FIELDS, numbers, strict=False)}
        seconds, changes = self._disks.since(counters)
        if not changes:
            return {}
        total = dict.fromkeys(_FIELDS, 0.0)
        for name, change in changes.items():
            total[name.split()[1]] += change
        busiest = max(change for name, change in changes.items() if name.endswith(" busy_ms"))
        values = {
            "system.disk.read": total["read_sectors"] * _SECTOR / seconds,
            "system.disk.write": total["written_sectors"] * _SECTOR / seconds,
            "system.disk.operations": (total["reads"] + total["writes"]) / seconds,
            "system.disk.busy": min(busiest / 1000.0 / seconds, 1.0),
        }
        for name, count, milliseconds in (("read", "reads", "read_ms"), ("write", "writes", "write_ms")):
            if total[count]:
                values[f"system.disk.{name}_latency"] = total[milliseconds] / 1000.0 / total[count]
        return values


def _is_partition(name: str, disks: Mapping[str, float]) -> bool:
    """Return whether a device is a part of a disk that was listed before it: `sda1` of `sda`, `nvme0n1p2` of `nvme0n1`."""
    whole = name.rstrip("0123456789")
    return any(f"{disk} reads" in disks for disk in (whole, whole.removesuffix("p")) if disk != name)
