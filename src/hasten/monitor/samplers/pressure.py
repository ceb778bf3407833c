"""Pressure stall information: how much of the time tasks wait for CPU, memory or I/O."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from hasten.core.errors import MachineError
from hasten.monitor.metric import Card, Metric
from hasten.monitor.rates import PROC, Changes
from hasten.monitor.sampler import Host

_WAITING = {"some": "some task waits", "full": "all tasks wait"}


class Pressure:
    """Reads the totals, so that a value is that of the window and not of the last ten seconds."""

    card: ClassVar[Card] = Card(
        name="pressure",
        source="/proc/pressure (https://docs.kernel.org/accounting/psi.html)",
        needs="Linux with PSI",
        metrics=tuple(
            Metric(
                name=f"system.pressure.{kind}.{share}",
                unit="1",
                help=f"Share of the time in which {_WAITING[share]} for {words}.",
            )
            for kind, share, words in (
                ("cpu", "some", "a core"),
                ("io", "some", "I/O"),
                ("io", "full", "I/O"),
                ("memory", "some", "memory"),
                ("memory", "full", "memory"),
            )
        ),
    )

    def __init__(self, host: Host, proc: Path = PROC) -> None:
        self._folder = proc / "pressure"
        self._known = {metric.name for metric in self.card.metrics}
        self._changes = Changes()
        if not self._totals():
            raise MachineError(f"{self._folder} cannot be read: this kernel has no PSI, or it is switched off (psi=1).")

    def sample(self) -> Mapping[str, float]:
        """Return the metrics since the last call."""
        return {name: min(rate, 1.0) for name, rate in self._changes.rates(self._totals()).items()}

    def _totals(self) -> dict[str, float]:
        """Return the seconds of each kind since boot."""
        totals: dict[str, float] = {}
        for kind in ("cpu", "io", "memory"):
            try:
                lines = (self._folder / kind).read_text(encoding="ascii").splitlines()
            except OSError:  # also if the kernel has it, but it is switched off
                continue
            for line in lines:
                totals[f"system.pressure.{kind}.{line.split()[0]}"] = int(line.rpartition("total=")[2]) / 1e6
        return {name: seconds for name, seconds in totals.items() if name in self._known}
