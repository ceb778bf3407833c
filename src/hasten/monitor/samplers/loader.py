"""The DataLoader in use: its workers, and how many batches wait."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from hasten.monitor.metric import Card, Metric
from hasten.monitor.sampler import Host


class Loader:
    """Looks at the iterator of the loader. Loaders without workers have nothing to show."""

    card: ClassVar[Card] = Card(
        name="loader",
        source="the iterator of torch.utils.data.DataLoader",
        needs="loader workers",
        metrics=(
            Metric(name="loader.workers", unit="{process}", help="Worker processes of the loader."),
            Metric(name="loader.workers_alive", unit="{process}", help="Worker processes that are alive."),
            Metric(name="loader.queue", unit="{batch}", help="Batches that are ready and wait. 0: the training waits."),
            Metric(name="loader.requested", unit="{batch}", help="Batches that were requested and not taken yet."),
        ),
    )

    def __init__(self, host: Host) -> None:
        self._loader = host.loader

    def sample(self) -> Mapping[str, float]:
        """Return the current values; none without workers."""
        iterator = self._loader()
        workers = list(getattr(iterator, "_workers", ()))
        if not workers or getattr(iterator, "_shutdown", False):  # at the end of an epoch, workers end as they should
            return {}
        outstanding = int(getattr(iterator, "_tasks_outstanding", 0))
        # Batches that came out of order wait in `_task_info`, with the number of their worker.
        early = sum(len(info) > 1 for info in list(getattr(iterator, "_task_info", {}).values()))
        queue = getattr(iterator, "_data_queue", None)
        values = {
            "loader.workers": float(len(workers)),
            "loader.workers_alive": float(sum(worker.is_alive() for worker in workers)),
            "loader.requested": float(outstanding),
        }
        try:
            values["loader.queue"] = float(early + (queue.qsize() if queue is not None else 0))
        except NotImplementedError:  # macOS has no size of a queue between processes
            return values
        return values
