"""How often caches of samples have what is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from hasten.monitor.metric import Card, Metric
from hasten.monitor.rates import Changes
from hasten.monitor.sampler import Host


class Caches:
    """Adds up counters whose names end in `_hits` and `_misses`. Reads in loader workers are not among them."""

    card: ClassVar[Card] = Card(
        name="caches",
        source="counters of the training process",
        needs="a cache that this process reads",
        metrics=(
            Metric(name="cache.hit_rate", unit="1", help="Share of the reads that a cache answered."),
            Metric(name="cache.reads", unit="{read}/s", help="Reads from caches."),
        ),
    )

    def __init__(self, host: Host) -> None:
        self._counters = host.counters
        self._changes = Changes()

    def sample(self) -> Mapping[str, float]:
        """Return the metrics since the last call; none if nothing was read."""
        counters = dict(self._counters())
        totals = {
            ending: sum(count for name, count in counters.items() if name.endswith(ending))
            for ending in ("_hits", "_misses")
        }
        seconds, changes = self._changes.since(totals)
        reads = sum(changes.values())
        return {"cache.hit_rate": changes["_hits"] / reads, "cache.reads": reads / seconds} if reads else {}
