"""What the batches of a held-out pass add up to: means by weight, and what is gathered whole."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, wait
from operator import itemgetter
from typing import Any

import torch

from hasten.core.errors import JobError
from hasten.core.job import Gathered, Job, Loss
from hasten.train.ranks import Ranks

MAX_IN_FLIGHT = 4
"""Batches whose metrics may be at work in threads; each keeps what the model gave for it in memory."""


class Tally:
    """Adds up one pass."""

    def __init__(self, job: Job, ranks: Ranks) -> None:
        self._job, self._ranks = job, ranks
        self._sums: dict[str, list[float]] = {}
        self._items: dict[str, list[tuple[int, list[Any]]]] = {}
        self._open: deque[tuple[int, Future[Any]]] = deque()

    def add(self, number: int, loss: Loss, found: Any) -> None:
        """Add a batch.

        Args:
            number: Of the batch.
            loss: Its loss.
            found: What the job's `metric` returned.

        Raises:
            JobError: It returned something else than it may.
        """
        self._merge(number, {"loss": loss})
        if not isinstance(found, Future):
            self._merge(number, found)
            return
        self._open.append((number, found))
        if len(self._open) > MAX_IN_FLIGHT:
            self._wait_for_one()

    def result(self, device: torch.device) -> dict[str, float]:
        """Wait for all threads, and give the metrics over all ranks.

        Raises:
            JobError: The weights of a metric sum to 0, or the job makes no numbers of what it gathered.
        """
        while self._open:
            self._wait_for_one()
        return {**self._means(device), **self._whole()}

    def drop(self) -> None:
        """Wait for the threads of a pass that failed; what they find is lost."""
        for _, future in self._open:
            future.cancel()
        wait([future for _, future in self._open])

    def _wait_for_one(self) -> None:
        number, future = self._open.popleft()
        self._merge(number, future.result())

    def _merge(self, number: int, found: Any) -> None:
        if not isinstance(found, Mapping):
            kind = type(found).__name__
            raise JobError(f"{type(self._job).__name__}.metric returned {kind}; return a dict of hasten.Mean.")
        for name, value in found.items():
            if isinstance(value, Gathered):
                self._items.setdefault(name, []).append((number, list(value.items)))
                continue
            if not (hasattr(value, "total") and hasattr(value, "weight")):
                kind = type(value).__name__
                raise JobError(f"metric {name!r} must be hasten.Mean(total, weight) or hasten.Gathered, not {kind}.")
            entry = self._sums.setdefault(name, [0.0, 0.0])
            entry[0] += float(value.total)
            entry[1] += float(value.weight)

    def _means(self, device: torch.device) -> dict[str, float]:
        means = {}
        kind = torch.float32 if device.type == "mps" else torch.float64
        for name in self._ranks.union(self._sums):
            mine = torch.tensor(self._sums.get(name, [0.0, 0.0]), dtype=kind, device=device)
            total, weight = self._ranks.sum(mine).tolist()
            if weight == 0:
                raise JobError(f"metric {name!r} has the total weight 0 over the held-out data: it cannot be a mean.")
            means[name] = total / weight
        return means

    def _whole(self) -> dict[str, float]:
        found: dict[str, float] = {}
        where = type(self._job).__name__
        for name in self._ranks.union(self._items):
            by_rank = self._ranks.gathered(self._items.get(name, []))
            parts = [(number, rank, some) for rank, mine in enumerate(by_rank) for number, some in mine]
            in_order = [item for *_, some in sorted(parts, key=itemgetter(0, 1)) for item in some]
            made: Any = self._job.whole_metric(name, in_order)
            if not isinstance(made, Mapping):
                raise JobError(f"{where}.whole_metric returned {type(made).__name__}; return a dict of numbers by name.")
            found.update({key: float(value) for key, value in made.items()})
        return found
