"""Make the batches of a script in worker processes that its loader does not have.

The workers belong to a loader of ours, which is given the indices that the script's sampler is expected to give.
"""

from __future__ import annotations

import multiprocessing
import signal
import warnings
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils import signal_handling

from hasten.core.live import LoaderSettings
from hasten.script.data.lookahead import Lookahead, same_index

MISSED = object()
"""Stands for a batch that no worker has made: the sampler gave another index than expected."""


class WorkerLoader(DataLoader[Any]):
    """A loader of ours, which must not be taken for one of the script's."""


class _Indices:
    """A sampler that gives the indices of the present epoch and remembers which it gave."""

    def __init__(self) -> None:
        self.upcoming: Iterator[Any] = iter(())
        self.given: deque[Any] = deque()

    def __iter__(self) -> Iterator[Any]:
        self.given.clear()
        for index in self.upcoming:
            self.given.append(index)
            yield index


class WorkerPool:
    """Worker processes for one loader of the script: for one epoch or, if they persist, for many.

    Args:
        loader: The script's loader, whose dataset, collate function and `worker_init_fn` the workers use.
        settings: The number of workers and how far they work ahead.
    """

    def __init__(self, loader: DataLoader[Any], settings: LoaderSettings) -> None:
        self._indices = _Indices()
        batched = loader.batch_sampler is not None
        sampling: dict[str, Any] = (
            {"batch_sampler": self._indices} if batched else {"batch_size": None, "sampler": self._indices}
        )
        self.collate = loader.collate_fn
        with _no_warnings():
            self._loader = WorkerLoader(
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
        self._epoch: weakref.ref[WorkerEpoch] | None = None

    def begin(self, lookahead: Lookahead, seed: int) -> WorkerEpoch:
        """Start an epoch, and stop an earlier one that is still running. `seed` is that of the workers' generators."""
        self._stop_epoch()
        self._indices.upcoming = lookahead
        self._loader.generator.manual_seed(seed)
        with _no_warnings(), _own_signals():
            self._iterator = iter(self._loader)
        # A worker that dies is noticed when its batch is waited for. Torch would raise wherever the script is just then.
        if self._iterator._worker_pids_set:  # noqa: SLF001 - torch has no other way
            torch._C._remove_worker_pids(id(self._iterator))  # noqa: SLF001 - as above
            self._iterator._worker_pids_set = False  # noqa: SLF001 - as above
        epoch = WorkerEpoch(self, self._iterator, self._indices)
        self._epoch = weakref.ref(epoch)
        return epoch

    def close(self) -> None:
        """End the workers; an iterator that still reads from them makes its batches itself."""
        self._stop_epoch()
        iterator, self._iterator = self._iterator, None
        self._loader._iterator = None  # noqa: SLF001 - where persistent workers are kept
        if iterator is not None:
            iterator._shutdown_workers()  # noqa: SLF001 - what torch does when the iterator is collected

    def _stop_epoch(self) -> None:
        before = self._epoch() if self._epoch is not None else None
        if before is not None:
            before.stopped = True


class WorkerEpoch:
    """The batches that worker processes make for one epoch.

    Args:
        pool: The workers.
        iterator: Torch's iterator over what they make, in order.
        indices: Remembers what they were given.
    """

    def __init__(self, pool: WorkerPool, iterator: Any, indices: _Indices) -> None:
        self._pool, self._iterator, self._indices = pool, iterator, indices
        self.stopped = False

    def take(self, index: Any) -> Any:
        """The batch of `index`, or `MISSED`. Raises what making it raised."""
        if not self._indices.given or not same_index(self._indices.given.popleft(), index):
            return MISSED
        return next(self._iterator, MISSED)

    def stop(self) -> None:
        """Make no more batches; workers that do not persist end."""
        if not self.stopped:
            self.stopped = True
            if not self._iterator._persistent_workers:  # noqa: SLF001 - torch has no other name for it
                self._pool.close()


@contextmanager
def _no_warnings() -> Iterator[None]:
    """Suppress torch's advice on the number of workers, which is not the script's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep the script's handler of SIGCHLD: torch would replace it permanently."""
    was_set, handler = signal_handling._SIGCHLD_handler_set, signal.getsignal(signal.SIGCHLD)  # noqa: SLF001 - torch has no other name
    try:
        yield
    finally:
        if handler is not None and not was_set and signal_handling._SIGCHLD_handler_set:  # noqa: SLF001 - as above
            signal.signal(signal.SIGCHLD, handler)
            signal_handling._SIGCHLD_handler_set = False  # noqa: SLF001 - as above
