"""Make batches ahead of a script's loop: by threads of its process, or by worker processes.

Both are handed the indices that the sampler is foreseen to give, and hand out each batch only for the index it was made of.
"""

from __future__ import annotations

import multiprocessing
import signal
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils import signal_handling

from hasten.core.live import LiveJob, LoaderSettings
from hasten.script.data.foresee import Foreseen, same_index

MISSED = object()
"""In place of a batch: the sampler gave another index than was foreseen."""


class Ahead(Protocol):
    """Batches made ahead.

    Attributes:
        stopped: Whether none is made any more.
    """

    stopped: bool

    def take(self, index: Any) -> Any:
        """The batch of `index`, or `MISSED`. Raises what making it raised."""
        ...

    def stop(self) -> None:
        """Make no more."""
        ...


class ThreadsAhead:
    """Batches made by threads of this process, each by one of them.

    Args:
        live: Counts `batches_by_threads`.
        pool: The threads.
        fetch: Makes the batch of an index, in any thread.
        foreseen: What the sampler is going to give.
        ahead: Batches ready or under way at once.
    """

    def __init__(
        self, live: LiveJob, pool: ThreadPoolExecutor, fetch: Callable[[Any], Any], foreseen: Foreseen, ahead: int
    ) -> None:
        self._live, self._pool, self._fetch = live, pool, fetch
        self._foreseen, self._ahead = foreseen, max(ahead, 1)
        self._under_way: deque[tuple[Any, Future[Any]]] = deque()
        self.stopped = False
        self._fill()

    def take(self, index: Any) -> Any:
        """See `Ahead`."""
        if not self._under_way:
            return MISSED
        expected, future = self._under_way.popleft()
        if not same_index(expected, index):
            return MISSED
        try:
            batch = future.result()
        finally:
            self._fill()
        self._live.count("batches_by_threads")
        return batch

    def stop(self) -> None:
        """See `Ahead`; what is being made is finished by its thread, and nobody waits for it."""
        self.stopped = True
        while self._under_way:
            self._under_way.popleft()[1].cancel()

    def _fill(self) -> None:
        while not self.stopped and len(self._under_way) < self._ahead:
            index = next(self._foreseen, MISSED)
            if index is MISSED:
                return
            self._under_way.append((index, self._pool.submit(self._fetch, index)))


class FedLoader(DataLoader[Any]):
    """A loader of ours: what it reads is handed to it, batch by batch."""


class _Feed:
    """A sampler that gives what is foreseen for the present epoch, and remembers what it gave."""

    def __init__(self) -> None:
        self.foreseen: Iterator[Any] = iter(())
        self.given: deque[Any] = deque()

    def __iter__(self) -> Iterator[Any]:
        self.given.clear()
        for index in self.foreseen:
            self.given.append(index)
            yield index


class Crew:
    """Worker processes for one loader of the script, over one epoch or, if they persist, over many.

    Args:
        loader: The script's loader: its dataset, collate function and start-up function are theirs.
        settings: How many they are, and how far they work ahead.
    """

    def __init__(self, loader: DataLoader[Any], settings: LoaderSettings) -> None:
        self._feed = _Feed()
        batched = loader.batch_sampler is not None
        sampling: dict[str, Any] = {"batch_sampler": self._feed} if batched else {"batch_size": None, "sampler": self._feed}
        self.collate = loader.collate_fn
        with _quiet():
            self._loader = FedLoader(
                loader.dataset,
                num_workers=settings.num_workers,
                prefetch_factor=settings.prefetch_factor,
                persistent_workers=settings.persistent,
                collate_fn=loader.collate_fn,
                pin_memory=loader.pin_memory,
                worker_init_fn=loader.worker_init_fn,
                multiprocessing_context=multiprocessing.get_context("fork"),
                generator=torch.Generator(),
                **sampling,
            )
        self._iterator: Any = None
        self._at_work: weakref.ref[WorkersAhead] | None = None

    def begin(self, foreseen: Foreseen, seed: int) -> WorkersAhead:
        """Start an epoch; an earlier one that is still under way is theirs no more. `seed`: of the workers' generators."""
        self._relieve()
        self._feed.foreseen = foreseen
        self._loader.generator.manual_seed(seed)
        with _quiet(), _own_signals():
            self._iterator = iter(self._loader)
        # A worker that dies is found when its batch is waited for. Torch would raise wherever the script is just then.
        if self._iterator._worker_pids_set:  # noqa: SLF001 - torch has no other way
            torch._C._remove_worker_pids(id(self._iterator))  # noqa: SLF001 - as above
            self._iterator._worker_pids_set = False  # noqa: SLF001 - as above
        ahead = WorkersAhead(self, self._iterator, self._feed)
        self._at_work = weakref.ref(ahead)
        return ahead

    @property
    def alive(self) -> int:
        """Workers that are running now."""
        return sum(worker.is_alive() for worker in getattr(self._iterator, "_workers", ()))

    def close(self) -> None:
        """Let them go; whoever still reads from them makes the batches itself."""
        self._relieve()
        iterator, self._iterator = self._iterator, None
        self._loader._iterator = None  # noqa: SLF001 - where persistent workers are kept
        if iterator is not None:
            iterator._shutdown_workers()  # noqa: SLF001 - what torch does when the iterator is collected

    def _relieve(self) -> None:
        before = self._at_work() if self._at_work is not None else None
        if before is not None:
            before.stopped = True


class WorkersAhead:
    """Batches made by worker processes, for one epoch.

    Args:
        crew: The workers.
        iterator: Torch's iterator over what they make, in order.
        feed: Remembers what they were handed.
    """

    def __init__(self, crew: Crew, iterator: Any, feed: _Feed) -> None:
        self.crew, self._iterator, self._feed = crew, iterator, feed
        self.stopped = False

    def take(self, index: Any) -> Any:
        """See `Ahead`."""
        if not self._feed.given or not same_index(self._feed.given.popleft(), index):
            return MISSED
        return next(self._iterator, MISSED)

    def stop(self) -> None:
        """See `Ahead`."""
        if not self.stopped:
            self.stopped = True
            if not self._iterator._persistent_workers:  # noqa: SLF001 - torch has no other name for it
                self.crew.close()


@contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's advice on the number of workers, which is not the script's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _own_signals() -> Iterator[None]:
    """Leave the script's handler of a child's end in place: torch would put its own there, for good."""
    was_set, handler = signal_handling._SIGCHLD_handler_set, signal.getsignal(signal.SIGCHLD)  # noqa: SLF001 - torch has no other name
    try:
        yield
    finally:
        if handler is not None and not was_set and signal_handling._SIGCHLD_handler_set:  # noqa: SLF001 - as above
            signal.signal(signal.SIGCHLD, handler)
            signal_handling._SIGCHLD_handler_set = False  # noqa: SLF001 - as above
