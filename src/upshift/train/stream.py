"""Bring the batches of an epoch, with any number of workers, the same every time.

Workers are torch's own DataLoader workers. What they are handed is a whole batch (epoch, indices), so that sample
randomness, caches and padding rules live in one place: `Pipeline.fetch`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, TypeAlias

import torch
from torch.utils.data import DataLoader, Dataset

from upshift.core.errors import JobError
from upshift.core.live import LiveJob, Pipeline
from upshift.core.seeding import get_random_state, kept_random_state, seed_sample, set_random_state
from upshift.train.ranks import Ranks

Request: TypeAlias = tuple[int, tuple[int, ...]]
"""An epoch and the sample indices of one batch."""

_READING = 3
"""Salt of the random numbers that an iterable dataset draws."""


class _Fetcher(Dataset[Any]):
    """A dataset of batches: its "index" is a request."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline

    def __getitem__(self, request: Request) -> tuple[Any, int]:
        epoch, indices = request
        return (self.pipeline.fetch(epoch, indices), len(indices)) if indices else (None, 0)


class _Requests:
    """The requests of the present epoch; a sampler whose content changes between epochs."""

    def __init__(self) -> None:
        self.now: list[Request] = []

    def __iter__(self) -> Iterator[Request]:
        return iter(self.now)

    def __len__(self) -> int:
        return len(self.now)


class Stream:
    """The batches of a live job, epoch by epoch."""

    def __init__(self, live: LiveJob, ranks: Ranks) -> None:
        self._live = live
        self._ranks = ranks
        self._requests = _Requests()
        self._loader: DataLoader[Any] | None = None
        self._iterator: Any = None

    def num_batches(self) -> int | None:
        """Micro-batches in an epoch; None for an iterable dataset."""
        return None if self._live.order is None else len(self._live.order(0))

    def epoch(self, epoch: int) -> Iterator[tuple[Any, int]]:
        """Yield (batch, its number of samples on this rank) for one epoch."""
        if self._live.order is None:
            yield from self._read_in_order(epoch)
            return
        share = self._ranks.share
        self._requests.now = [(epoch, tuple(share(indices))) for indices in self._live.order(epoch)]
        if self._live.loader.num_workers == 0:
            fetch = self._live.pipeline.fetch
            for number, indices in self._requests.now:
                yield (fetch(number, indices), len(indices)) if indices else (None, 0)
            return
        if self._loader is None:
            self._loader = self._make_loader()
        self._iterator = iter(self._loader)
        yield from self._iterator
        if not self._live.loader.persistent:
            self.close()

    def workers_alive(self) -> int:
        """How many worker processes of this stream are running now."""
        return sum(process.is_alive() for process in self._workers())

    def _workers(self) -> list[Any]:
        return list(getattr(self._iterator, "_workers", []))

    def close(self) -> None:
        """Let the workers go; the next epoch starts new ones."""
        self._loader = self._iterator = None

    def _make_loader(self) -> DataLoader[Any]:
        settings = self._live.loader
        return DataLoader(
            _Fetcher(self._live.pipeline),
            batch_size=None,
            sampler=self._requests,
            num_workers=settings.num_workers,
            prefetch_factor=settings.prefetch_factor,
            persistent_workers=settings.persistent,
            pin_memory=settings.pin_memory,
            generator=torch.Generator(),  # else each epoch draws the workers' seed from the stream that dropout draws from
        )

    def _read_in_order(self, epoch: int) -> Iterator[tuple[Any, int]]:
        job, pipeline = self._live.job, self._live.pipeline
        with kept_random_state():
            seed_sample(self._live.seed, epoch, 0, salt=_READING)
            samples = iter(self._live.dataset)
            state = get_random_state()
        position, size = 0, job.batch_size
        while True:
            with kept_random_state():  # a generator draws its random numbers here, not in iter()
                set_random_state(state)
                taken = list(islice(samples, size))
                state = get_random_state()
            if not taken and position == 0:
                raise JobError(f"{type(job).__name__}.train_data() gave no sample in epoch {epoch}: look at its __iter__.")
            if not taken:
                return
            loaded = {position + at: job.deterministic_transform(sample) for at, sample in enumerate(taken)}
            mine = self._ranks.share(range(position, position + len(taken)))
            reader = Pipeline(
                load=loaded.__getitem__, finish=pipeline.finish, collate=pipeline.collate, adjust=pipeline.adjust,
                seed=pipeline.seed, load_is_random=False, finish_is_random=pipeline.finish_is_random,
                collate_is_random=pipeline.collate_is_random,
            )  # fmt: skip
            yield (reader.fetch(epoch, mine), len(mine)) if mine else (None, 0)
            position += len(taken)
