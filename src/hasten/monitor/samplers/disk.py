"""Reading and writing: by the training, by the machine's disks, and how long a request takes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from typing import ClassVar

import psutil

from hasten.monitor.metric import Card, Metric
from hasten.monitor.rates import PROC, Changes, needed
from hasten.monitor.sampler import Host

_VIRTUAL = ("loop", "ram", "zram", "dm-", "md", "sr", "fd")
"""Devices that are no disks, or whose requests are counted in another device too."""


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

    def __init__(self, host: Host) -> None:
        self._folder = host.folder
        needed(PROC / "diskstats")
        self._own, self._disks = Changes(), Changes()

    def sample(self) -> Mapping[str, float]:
        """Return the metrics since the last call."""
        values = self._of_disks()
        with suppress(psutil.AccessDenied):  # in some containers
            own = psutil.Process().io_counters()
            values |= self._own.rates(
                {
                    "process.disk.read": own.read_bytes,
                    "process.disk.write": own.write_bytes,
                    "process.io.read": own.read_chars,
                }
            )
        if self._folder.exists():
            values["system.disk.free"] = float(psutil.disk_usage(str(self._folder)).free)
        return values

    def _of_disks(self) -> dict[str, float]:
        counters: dict[str, float] = {}
        for disk, found in psutil.disk_io_counters(perdisk=True, nowrap=False).items():
            if not disk.startswith(_VIRTUAL) and not _is_partition(disk, counters):
                counters |= {f"{disk} {field}": float(count) for field, count in found._asdict().items()}
        seconds, changes = self._disks.since(counters)
        if not changes:
            return {}
        total = defaultdict[str, float](float)
        for name, change in changes.items():
            total[name.split()[1]] += change
        busiest = max(change for name, change in changes.items() if name.endswith(" busy_time"))
        values = {
            "system.disk.read": total["read_bytes"] / seconds,
            "system.disk.write": total["write_bytes"] / seconds,
            "system.disk.operations": (total["read_count"] + total["write_count"]) / seconds,
            "system.disk.busy": min(busiest / 1000.0 / seconds, 1.0),
        }
        for way in ("read", "write"):
            if count := total[f"{way}_count"]:
                values[f"system.disk.{way}_latency"] = total[f"{way}_time"] / 1000.0 / count
        return values


def _is_partition(name: str, disks: Mapping[str, float]) -> bool:
    """Return whether a device is a part of a disk that was listed before it: `sda1` of `sda`, `nvme0n1p2` of `nvme0n1`."""
    whole = name.rstrip("0123456789")
    return any(f"{disk} read_count" in disks for disk in (whole, whole.removesuffix("p")) if disk != name)
