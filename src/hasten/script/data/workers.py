"""Make the batches of a script in worker processes that its loader does not have.

The workers belong to a loader of ours, which is given the indices that the script's sampler is expected to give. They are
forked for each epoch, so they hold everything as the script has it then: workers that outlive an epoch would go on with
what the script had when they were started.
"""

from __future__ import annotations

import copy
import multiprocessing
import signal
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils import signal_handling

from hasten.core.live import LoaderSettings
from hasten.script.data.lookahead import Lookahead, same_index

MISSED = object()
"""Stands for a batch that no worker has made: the sampler gave another index than expected."""
SPREAD = 7919
"""A prime: which sample of a batch is the witness is spread over the places in a batch."""


class Made(NamedTuple):
    """A batch from a worker, and what its truth is told by.

    Attributes:
        batch: The batch.
        at: Place of its witness among its samples.
        witness: The witness as a batch of its own; None if there is none.
    """

    batch: Any
    at: int = 0
    witness: Any = None


class WorkerLoader(DataLoader[Any]):
    """A loader of ours, which must not be taken for one of the script's."""


class WorkerEpoch:
    """The batches that worker processes, started here, make for one epoch.

    Args:
        loader: The script's loader, whose dataset, collate function and `worker_init_fn` the workers use.
        settings: The number of workers and how far they work ahead.
        lookahead: The indices of the epoch.
        seed: That of the workers' generators.
        witnesses: Whether a sample of each batch is also collated by itself.
    """

    def __init__(
        self, loader: DataLoader[Any], settings: LoaderSettings, lookahead: Lookahead, seed: int, *, witnesses: bool
    ) -> None:
        self._given: deque[Any] = deque()
        batched = loader.batch_sampler is not None
        self._witnesses = witnesses and batched
        indices = _Noted(lookahead, self._given)
        sampling: dict[str, Any] = {"batch_sampler": indices} if batched else {"batch_size": None, "sampler": indices}
        with _no_warnings(), _own_signals():
            ours: Any = WorkerLoader(
                loader.dataset,
                num_workers=settings.num_workers,
                prefetch_factor=settings.prefetch_factor,
                collate_fn=_Witnessed(loader.collate_fn) if self._witnesses else loader.collate_fn,
                pin_memory=loader.pin_memory,
                worker_init_fn=loader.worker_init_fn,
                multiprocessing_context=multiprocessing.get_context("fork"),
                generator=torch.Generator().manual_seed(seed),
                **sampling,
            )
            self._iterator: Any = iter(ours)
        # A worker that dies is noticed when its batch is waited for. Torch would raise wherever the script is just then.
        if self._iterator._worker_pids_set:  # noqa: SLF001 - torch has no other way
            torch._C._remove_worker_pids(id(self._iterator))  # noqa: SLF001 - as above
            self._iterator._worker_pids_set = False  # noqa: SLF001 - as above
        self.stopped = False

    def take(self, index: Any) -> Any:
        """The batch of `index` as `Made`, or `MISSED`. Raises what making it raised."""
        if not self._given or not same_index(self._given.popleft(), index):
            return MISSED
        made: Any = next(self._iterator, MISSED)
        if made is MISSED:
            return MISSED
        return Made(*made) if self._witnesses else Made(made)

    def stop(self) -> None:
        """End the workers."""
        if not self.stopped:
            self.stopped = True
            self._iterator._shutdown_workers()  # noqa: SLF001 - what torch does when the iterator is collected
            self._iterator = iter(())


class _Noted:
    """A sampler that gives the indices of an epoch and notes which it gave."""

    def __init__(self, upcoming: Iterator[Any], given: deque[Any]) -> None:
        self._upcoming, self._given = upcoming, given

    def __iter__(self) -> Iterator[Any]:
        for index in self._upcoming:
            self._given.append(index)
            yield index


class _Witnessed:
    """A collate function that also collates one sample of each batch by itself."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate, self._batches = collate, 0

    def __call__(self, samples: Sequence[Any]) -> tuple[Any, int, Any]:
        self._batches += 1
        at = self._batches * SPREAD % len(samples)
        alone = copy.deepcopy(samples[at])  # the collate function may change what it is given
        batch = self._collate(samples)
        try:
            return batch, at, self._collate([alone])
        except Exception:  # noqa: BLE001 - some need several samples; whole batches are compared then
            return batch, at, None


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
