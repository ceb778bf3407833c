"""Fetch the batches of an epoch with any number of workers or threads. The result is always the same.

Workers are torch's DataLoader workers. Each request is for a whole batch (epoch, indices), so that sample randomness, caches
and padding are handled in one place: `Pipeline.fetch`. Threads share the three random number generators of the process with
the training, so they only do work that draws no random numbers. The rest is done when the batch is taken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import islice
from typing import Any, TypeAlias

import torch
from torch.utils.data import DataLoader, Dataset

from hasten.core.batch import iter_tensors, map_tensors
from hasten.core.errors import JobError
from hasten.core.live import LiveJob, Pipeline
from hasten.core.seeding import get_random_state, kept_random_state, seed_sample, set_random_state
from hasten.train.ranks import Ranks

Request: TypeAlias = tuple[int, tuple[int, ...]]
"""An epoch and the sample indices of one batch."""

Batches: TypeAlias = Generator[tuple[Any, int], None, None]
"""Pairs of a batch and its number of samples on this rank; (None, 0) if the rank has none."""

THREAD_NAME = "hasten-loader"

_READING = 3
"""Seed salt for the random numbers that an iterable dataset draws."""


class _Fetcher(Dataset[Any]):
    """A dataset of batches. Its "index" is a request."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline

    def __getitem__(self, request: Request) -> tuple[Any, int]:
        epoch, indices = request
        return (self.pipeline.fetch(epoch, indices), len(indices)) if indices else (None, 0)


class _Requests:
    """The requests of the current epoch: a sampler whose content changes between epochs."""

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
        self.iterator: Any = None

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Any, int]]:
        """Yield (batch, number of samples on this rank) for one epoch, starting at batch `start`."""
        settings = self._live.loader
        batches = self._fetched(epoch, start)
        if settings.pin_memory:
            batches = self._counted_as_pinned(batches)
        if settings.device_prefetch:
            batches = self._copied_ahead(batches)
        with closing(batches):
            yield from batches

    def _fetched(self, epoch: int, start: int) -> Batches:
        if self._live.order is None:
            yield from self._read_in_order(epoch, start)
            return
        share, settings = self._ranks.share, self._live.loader
        self._requests.now = [(epoch, tuple(share(indices))) for indices in self._live.batches(epoch)[start:]]
        if settings.num_workers == 0 and settings.num_threads > 0:
            yield from self._by_threads(list(self._requests.now))
            return
        if settings.num_workers == 0:
            for request in self._requests.now:
                yield self._fetch(request)
            return
        if self._loader is None:
            self._loader = self._make_loader()
        self.iterator = iter(self._loader)
        yield from self.iterator
        if not settings.persistent:
            self.close()

    def _fetch(self, request: Request) -> tuple[Any, int]:
        epoch, indices = request
        return (self._pinned(self._live.pipeline.fetch(epoch, indices)), len(indices)) if indices else (None, 0)

    def _by_threads(self, requests: list[Request]) -> Batches:
        """Prefetch batches in threads. Work that may draw random numbers is done here, when a batch is taken."""
        live, pipeline, settings = self._live, self._live.pipeline, self._live.loader
        if pipeline.load_is_random:
            raise JobError(
                "Reading a sample may draw random numbers, but threads share the generators: set num_threads to 0."
            )
        whole = not (pipeline.finish_is_random or pipeline.collate_is_random)
        pool = ThreadPoolExecutor(settings.num_threads, THREAD_NAME)

        def submit(request: Request) -> Future[Any]:
            return pool.submit(self._fetch, request) if whole else pool.submit(pipeline.read, request[1])

        try:
            waiting_requests = iter(requests)
            waiting = deque((request, submit(request)) for request in islice(waiting_requests, max(settings.ahead, 1)))
            while waiting:
                (epoch, indices), future = waiting.popleft()
                result = future.result()
                waiting.extend((request, submit(request)) for request in islice(waiting_requests, 1))
                live.count("batches_by_threads")
                if whole:
                    yield result
                else:
                    yield (self._pinned(pipeline.complete(epoch, indices, result)), len(indices)) if indices else (None, 0)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _pinned(self, batch: Any) -> Any:
        """Return the batch in page-locked memory if `pin_memory` is set."""
        if not self._live.loader.pin_memory:
            return batch
        return map_tensors(batch, lambda tensor: tensor if tensor.is_cuda else tensor.pin_memory())

    def _counted_as_pinned(self, batches: Batches) -> Batches:
        with closing(batches):
            for batch, size in batches:
                tensors = list(iter_tensors(batch))
                self._live.count("pinned_batches", bool(tensors) and all(tensor.is_pinned() for tensor in tensors))
                yield batch, size

    def _copied_ahead(self, batches: Batches) -> Batches:
        """Start copying each batch to the device before the previous one is trained on.

        The copies use a separate CUDA stream. The training stream waits for the copy of its own batch, but not for the copy
        in progress. `record_stream` registers the training stream with the allocator, which could otherwise reuse the memory
        of a batch for a later copy while it is still being read.
        """
        device = self._live.device
        copies = torch.cuda.Stream(device)

        def start(item: tuple[Any, int]) -> tuple[Any, int]:
            with torch.cuda.stream(copies):
                return map_tensors(item[0], lambda tensor: tensor.to(device, non_blocking=True)), item[1]

        with closing(batches):
            first = next(batches, None)
            copying = None if first is None else start(first)
            while copying is not None:
                current, training = copying, torch.cuda.current_stream(device)
                training.wait_stream(copies)
                for tensor in iter_tensors(current[0]):
                    if tensor.is_cuda:
                        tensor.record_stream(training)
                item = next(batches, None)
                copying = None if item is None else start(item)
                self._live.count("batches_copied_ahead")
                yield current

    def workers_alive(self) -> int:
        """Return the number of running worker processes of this stream."""
        return sum(process.is_alive() for process in self._workers())

    def _workers(self) -> list[Any]:
        return list(getattr(self.iterator, "_workers", []))

    def close(self) -> None:
        """Stop the workers. The next epoch starts new ones."""
        self._loader = self.iterator = None

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
            generator=torch.Generator(),  # otherwise each epoch draws the workers' seed from the generator of dropout
        )

    def _read_in_order(self, epoch: int, start: int) -> Batches:
        job, pipeline = self._live.job, self._live.pipeline
        with kept_random_state():
            seed_sample(self._live.seed, epoch, 0, salt=_READING)
            samples = iter(self._live.dataset)
            state = get_random_state()
        position, size, number = 0, job.batch_size, 0
        while True:
            with kept_random_state():  # a generator function draws its random numbers here, not in iter()
                set_random_state(state)
                taken = list(islice(samples, size))
                state = get_random_state()
            if not taken and position == 0:
                raise JobError(f"{type(job).__name__}.train_data() gave no samples in epoch {epoch}: check its __iter__.")
            if not taken:
                return
            number += 1
            if number <= start:  # skip by reading: an iterable dataset has no other way to reach a position
                position += len(taken)
                continue
            loaded = {index: job.deterministic_transform(sample) for index, sample in enumerate(taken, position)}
            mine = self._ranks.share(range(position, position + len(taken)))
            reader = Pipeline(
                load=loaded.__getitem__, finish=pipeline.finish, collate=pipeline.collate, adjust=pipeline.adjust,
                seed=pipeline.seed, load_is_random=False, finish_is_random=pipeline.finish_is_random,
                collate_is_random=pipeline.collate_is_random,
            )  # fmt: skip
            yield (self._pinned(reader.fetch(epoch, mine)), len(mine)) if mine else (None, 0)
            position += len(taken)
