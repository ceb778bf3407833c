"""Measure a model on the held-out data: weighted means, without gradients, without side effects on the training."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from contextlib import ExitStack
from operator import itemgetter
from typing import Any, Self

import torch

from hasten.core.errors import JobError
from hasten.core.job import Gathered, Job, Loss, is_iterable
from hasten.core.live import LiveJob
from hasten.core.seeding import kept_random_state, seed_sample
from hasten.train.ranks import Ranks, current_ranks

_HELD_OUT = 4
"""Seed salt for the random numbers that reading a held-out sample may draw, the same in every measurement."""


class HeldOut:
    """The held-out data of a job, which can be measured any number of times.

    Args:
        live: The live job.
        ranks: The ranks that measure together; by default the current process group.
        data: The held-out data; by default that of the job.
        as_written: Measure with the job as named on the command line, not with the form in use.

    Raises:
        JobError: The job has no held-out data, or it is empty.
    """

    def __init__(self, live: LiveJob, ranks: Ranks | None = None, data: Any = None, *, as_written: bool = False) -> None:
        self._live, self._ranks = live, ranks or current_ranks()
        job = self._job = live.as_written if as_written else live.job
        if data is None:
            data = job.valid_data()
        if data is None:
            raise JobError(f"{type(job).__name__} has no held-out data: write valid_data(self).")
        self._data: Any = list(data) if is_iterable(data) else data
        self._count: int = len(self._data)
        if self._count == 0:
            raise JobError(f"{type(job).__name__}.valid_data() has 0 samples.")

    @classmethod
    def where_given(cls, live: LiveJob) -> Self | None:
        """Return the held-out data of a job, or None if it has none."""
        data = live.job.valid_data()
        return None if data is None else cls(live, data=data)

    @property
    def num_batches(self) -> int:
        """Number of batches of a whole pass, in training batches."""
        return -(-self._count // self._live.job.batch_size)

    def measure(self, *, max_batches: int | None = None, plain: bool = False) -> dict[str, float]:
        """Return `loss` and the job's own metrics over the data and all ranks.

        Args:
            max_batches: Stop after the samples of this number of training batches; None measures all.
            plain: Measure without the plan's forward contexts, packing and validation settings, so that all plans are
                measured in the same way.

        Raises:
            JobError: The metric is neither `Mean` nor `Gathered`, or the total weight is 0.
        """
        live = self._live
        contexts, live.forward_contexts = live.forward_contexts, [] if plain else live.forward_contexts
        at_work, live.job = live.job, self._job
        collate = live.job.collate if plain else live.pipeline.collate
        modes = [(module, module.training) for module in live.model.modules()]
        live.model.eval()
        tally = MetricTotals(live.job, self._ranks)
        try:
            with ExitStack() as stack:
                stack.enter_context(torch.inference_mode())
                stack.enter_context(kept_random_state())
                for make in () if plain else live.around.validation_contexts:
                    stack.enter_context(make())
                for number, indices in enumerate(self._batches(max_batches, plain=plain)):
                    mine = self._ranks.share(indices)
                    if len(mine) == 0 and live.sync is not None and live.sync.each_pass:
                        self._measure_batch(number, indices, None, collate)  # the other ranks' passes need this rank
                    else:
                        self._measure_batch(number, mine, tally, collate)
                return tally.result(live.device)
        finally:
            tally.drop()
            live.job, live.forward_contexts = at_work, contexts
            for module, training in modes:  # submodules that the user keeps in eval mode stay in it
                module.training = training

    def _batches(self, max_batches: int | None, *, plain: bool) -> list[range]:
        """Return the samples of each batch. A plan may combine several training batches into one."""
        training, together = self._live.job.batch_size, 1 if plain else self._live.around.validation_batches
        count = self._count if max_batches is None else min(self._count, max_batches * training)
        size = training * together
        return [range(start, min(start + size, count)) for start in range(0, count, size)]

    def _measure_batch(
        self, number: int, indices: Any, tally: MetricTotals | None, collate: Callable[[list[Any]], Any]
    ) -> None:
        live = self._live
        if not len(indices):
            return
        loaded = []
        for index in indices:
            seed_sample(live.seed, 0, index, salt=_HELD_OUT)
            loaded.append(live.job.deterministic_transform(self._data[index]))
        if len(loaded) > live.job.batch_size:
            live.count("validation_large_batches")
        batch = collate(list(loaded))
        for adjust in live.pipeline.adjust:
            batch = adjust(batch, loaded)
        batch = live.to_device(batch)
        loss: Any = live.compute_loss(batch)
        if not isinstance(loss, Loss | torch.Tensor):
            kind = type(loss).__name__
            raise JobError(f"{type(live.job).__name__}.loss returned {kind}; return a scalar tensor or hasten.Loss.")
        part = loss if isinstance(loss, Loss) else Loss(loss * len(loaded), len(loaded))
        with live.contexts():
            measured: Any = live.job.metric(live.model, batch)
        if tally is not None:
            tally.add(number, part, measured)
        elif isinstance(measured, Future):
            measured.result()


MAX_IN_FLIGHT = 4
"""Largest number of batches whose metrics may run in threads. Each keeps the model's output for it in memory."""


class MetricTotals:
    """The sums of the metrics of one validation pass."""

    def __init__(self, job: Job, ranks: Ranks) -> None:
        self._job, self._ranks = job, ranks
        self._sums: dict[str, list[float]] = {}
        self._items: dict[str, list[tuple[int, list[Any]]]] = {}
        self._open: deque[tuple[int, Future[Any]]] = deque()

    def add(self, number: int, loss: Loss, metrics: Any) -> None:
        """Add a batch.

        Args:
            number: Index of the batch.
            loss: The loss of the batch.
            metrics: The result of the job's `metric`.

        Raises:
            JobError: `metric` returned an object of the wrong type.
        """
        self._merge(number, {"loss": loss})
        if not isinstance(metrics, Future):
            self._merge(number, metrics)
            return
        self._open.append((number, metrics))
        if len(self._open) > MAX_IN_FLIGHT:
            self._wait_for_one()

    def result(self, device: torch.device) -> dict[str, float]:
        """Wait for all threads, and return the metrics over all ranks.

        Raises:
            JobError: The weights of a metric sum to 0, or `whole_metric` did not return numbers by name.
        """
        while self._open:
            self._wait_for_one()
        return {**self._means(device), **self._whole()}

    def drop(self) -> None:
        """Wait for the threads of a failed pass, and discard their results."""
        for _, future in self._open:
            future.cancel()
        wait([future for _, future in self._open])

    def _wait_for_one(self) -> None:
        number, future = self._open.popleft()
        self._merge(number, future.result())

    def _merge(self, number: int, metrics: Any) -> None:
        if not isinstance(metrics, Mapping):
            kind = type(metrics).__name__
            raise JobError(f"{type(self._job).__name__}.metric returned {kind}; return a dict of hasten.Mean.")
        for name, value in metrics.items():
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
                raise JobError(f"metric {name!r} has total weight 0 over the held-out data, so it has no mean.")
            means[name] = total / weight
        return means

    def _whole(self) -> dict[str, float]:
        metrics: dict[str, float] = {}
        where = type(self._job).__name__
        for name in self._ranks.union(self._items):
            by_rank = self._ranks.gather(self._items.get(name, []))
            parts = [(number, rank, some) for rank, mine in enumerate(by_rank) for number, some in mine]
            in_order = [item for *_, some in sorted(parts, key=itemgetter(0, 1)) for item in some]
            whole: Any = self._job.whole_metric(name, in_order)
            if not isinstance(whole, Mapping):
                raise JobError(f"{where}.whole_metric returned {type(whole).__name__}; return a dict of numbers by name.")
            metrics.update({key: float(value) for key, value in whole.items()})
        return metrics
