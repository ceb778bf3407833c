"""Measure a model on the held-out data: weighted means, no gradients, nothing of the training disturbed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any, Self

import torch

from hasten.core.errors import JobError
from hasten.core.job import Loss, is_iterable
from hasten.core.live import LiveJob
from hasten.core.seeding import kept_random_state, seed_sample
from hasten.train.ranks import Ranks, current_ranks
from hasten.train.tally import Tally

_HELD_OUT = 4
"""Salt of the random numbers that reading a held-out sample may draw: the same at every measurement."""


class HeldOut:
    """The held-out data of a job, read once and measured as often as asked.

    Args:
        live: The live job.
        ranks: Those that measure together; those of this process unless given.
        data: The data; the job's own unless given.
        as_written: Measure by the job as it was named, whatever form of it is at work.

    Raises:
        JobError: The job has none, or it is empty.
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
        """The held-out data of a job that has some; None for one that has none."""
        data = live.job.valid_data()
        return None if data is None else cls(live, data=data)

    @property
    def num_batches(self) -> int:
        """How many batches of the training's size a whole pass holds."""
        return -(-self._count // self._live.job.batch_size)

    def measure(self, *, max_batches: int | None = None, plain: bool = False) -> dict[str, float]:
        """Give `loss` and the job's own metrics over the data and all ranks.

        Args:
            max_batches: Stop after the samples of so many batches of the training's size; None measures all.
            plain: Leave the plan's forward contexts, packing and ways of validating out, so that every plan is measured
                with the same ruler.

        Raises:
            JobError: The metric is neither `Mean` nor `Gathered`, or the total weight is 0.
        """
        live = self._live
        contexts, live.forward_contexts = live.forward_contexts, [] if plain else live.forward_contexts
        at_work, live.job = live.job, self._job
        collate = live.job.collate if plain else live.pipeline.collate
        modes = [(module, module.training) for module in live.model.modules()]
        live.model.eval()
        tally = Tally(live.job, self._ranks)
        try:
            with ExitStack() as stack:
                stack.enter_context(torch.inference_mode())
                stack.enter_context(kept_random_state())
                for make in () if plain else live.around.validation_contexts:
                    stack.enter_context(make())
                for number, indices in enumerate(self._batches(max_batches, plain=plain)):
                    mine = self._ranks.share(indices)
                    if len(mine) == 0 and live.sync is not None and live.sync.each_pass:
                        self._measure_batch(number, indices, None, collate)  # the others cannot pass without this rank
                    else:
                        self._measure_batch(number, mine, tally, collate)
                return tally.result(live.device)
        finally:
            tally.drop()
            live.job, live.forward_contexts = at_work, contexts
            for module, training in modes:  # a part that the user froze in eval mode stays so
                module.training = training

    def _batches(self, max_batches: int | None, *, plain: bool) -> list[range]:
        """The samples of each batch, several training batches in one where the plan says so."""
        training, together = self._live.job.batch_size, 1 if plain else self._live.around.validation_batches
        count = self._count if max_batches is None else min(self._count, max_batches * training)
        size = training * together
        return [range(at, min(at + size, count)) for at in range(0, count, size)]

    def _measure_batch(self, number: int, indices: Any, tally: Tally | None, collate: Callable[[list[Any]], Any]) -> None:
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
