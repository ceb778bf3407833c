"""Bytes over the network, without the loopback."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import psutil

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

    def __init__(self, host: Host) -> None:
        needed(PROC / "net" / "dev")
        self._changes = Changes()

    def sample(self) -> Mapping[str, float]:
        """Return the metrics since the last call."""
        found = [one for name, one in psutil.net_io_counters(pernic=True, nowrap=False).items() if name != "lo"]
        return self._changes.rates(
            {
                "system.network.receive": float(sum(one.bytes_recv for one in found)),
                "system.network.transmit": float(sum(one.bytes_sent for one in found)),
                "system.network.errors": float(sum(one.errin + one.errout + one.dropin + one.dropout for one in found)),
            }
        )
