"""The Python process: garbage collections, and graphs that torch.compile made."""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping
from typing import ClassVar

from hasten.monitor.metric import Card, Metric
from hasten.monitor.rates import Changes
from hasten.monitor.sampler import Host


class Python:
    """Reads counters that Python and torch keep anyway. Imports nothing."""

    card: ClassVar[Card] = Card(
        name="python",
        source="gc.get_stats, torch._dynamo.utils.counters",
        metrics=(
            Metric(name="python.full_collections", unit="{collection}/s", help="Collections of the oldest generation."),
            Metric(name="python.compiled_graphs", unit="{graph}", help="Graphs that torch.compile has made so far."),
        ),
    )

    def __init__(self, host: Host) -> None:
        self._changes = Changes()

    def sample(self) -> Mapping[str, float]:
        """Return the current values."""
        collections = {"python.full_collections": float(gc.get_stats()[-1]["collections"])}
        values = self._changes.rates(collections)
        dynamo = sys.modules.get("torch._dynamo.utils")
        if dynamo is not None:
            values["python.compiled_graphs"] = float(dynamo.counters["stats"]["unique_graphs"])
        return values
