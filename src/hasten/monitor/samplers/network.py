"""Bytes over the network, without the loopback."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from hasten.monitor.metric import Card, Metric
from hasten.monitor.rates import PROC, Changes, needed
from hasten.monitor.sampler import Host


class Network:
    """Adds up the network interfaces."""

    card: ClassVar[Card] = Card(
        name="network",
        source="/proc/net/dev",
        needs="Linux",
        metrics=(
            Metric(name="system.network.receive", unit="By/s", help="Bytes received, without the loopback."),
            Metric(name="system.network.transmit", unit="By/s", help="Bytes sent, without the loopback."),
            Metric(name="system.network.errors", unit="{packet}/s", help="Packets with errors or dropped, both ways."),
        ),
    )

    def __init__(self, host: Host, proc: Path = PROC) -> None:
        self._path = needed(proc / "net" / "dev")
        self._changes = Changes()

    def sample(self) -> Mapping[str, float]:
        """Return the metrics since the last call."""
        received = sent = errors = 0
        for line in self._path.read_text(encoding="ascii").splitlines()[2:]:
            name, _, rest = line.partition(":")
            if name.strip() != "lo":
                numbers = [int(number) for number in rest.split()]
                received, sent = received + numbers[0], sent + numbers[8]
                errors += numbers[2] + numbers[3] + numbers[10] + numbers[11]
        names = ("system.network.receive", "system.network.transmit", "system.network.errors")
        return self._changes.rates(dict(zip(names, (received, sent, errors), strict=True)))
