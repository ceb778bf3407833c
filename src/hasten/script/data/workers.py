"""Make the batches of a script in worker processes although its loader has none.

The workers belong to a separate loader, which receives the indices that the script's sampler is expected to give. They are
forked for each epoch, so that they have the script's current state; workers that outlived an epoch would continue with an
outdated state.
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
"""Marks a batch that no worker has made, because the sampler gave another index than expected."""
SPREAD = 7919
"""A prime number that spreads the witness over the positions in a batch."""


class Made(NamedTuple):
    """A batch from a worker, with a sample for checking it.

    Attributes:
        batch: The batch.
        at: Position of the witness among the samples of the batch.
        witness: The witness, collated as a batch of one sample; None if there is none.
    """

    batch: Any
    at: int = 0
    witness: Any = None


class WorkerLoader(DataLoader[Any]):
    """Hasten's own loader, distinct from the script's loaders."""


class WorkerEpoch:
    """The batches that worker processes make for one epoch.

    Args:
        loader: The script's loader. The workers use its dataset, collate function and `worker_init_fn`.
        settings: The number of workers and of batches they prefetch.
        lookahead: The indices of the epoch.
        seed: Seed of the workers' generators.
        witnesses: Whether one sample of each batch is also collated separately.
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
        # Detect a dead worker when waiting for its batch. Torch would raise an error at any point of the script.
        if self._iterator._worker_pids_set:  # noqa: SLF001 - torch has no public way
            torch._C._remove_worker_pids(id(self._iterator))  # noqa: SLF001 - as above
            self._iterator._worker_pids_set = False  # noqa: SLF001 - as above
        self.stopped = False

    def take(self, index: Any) -> Any:
        """Return the batch of `index` as `Made`, or `MISSED`. Raises errors of the worker."""
        if self.stopped or not self._given or not same_index(self._given.popleft(), index):
            return MISSED
        try:
            made: Any = self._iterator._next_data()  # noqa: SLF001 - `next` would be watched as if the script took two batches
        except StopIteration:
            return MISSED
        return Made(*made) if self._witnesses else Made(made)

    def stop(self) -> None:
        """Stop the workers."""
        if not self.stopped:
            self.stopped = True
            self._iterator._shutdown_workers()  # noqa: SLF001 - torch calls it when the iterator is collected
            self._iterator = None


class _Noted:
    """A sampler that yields the indices of an epoch and records them."""

    def __init__(self, upcoming: Iterator[Any], given: deque[Any]) -> None:
        self._upcoming, self._given = upcoming, given

    def __iter__(self) -> Iterator[Any]:
        for index in self._upcoming:
            self._given.append(index)
            yield index


class _Witnessed:
    """A collate function that also collates one sample of each batch separately."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate, self._batches = collate, 0

    def __call__(self, samples: Sequence[Any]) -> tuple[Any, int, Any]:
        self._batches += 1
        at = self._batches * SPREAD % len(samples)
        alone = copy.deepcopy(samples[at])  # the collate function may modify its arguments
        batch = self._collate(samples)
        try:
            return batch, at, self._collate([alone])
        except Exception:  # noqa: BLE001 - some collate functions need several samples; then whole batches are compared
            return batch, at, None


@contextmanager
def _no_warnings() -> Iterator[None]:
    """Suppress torch's warnings about the number of workers, which the script did not choose."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep the script's handler of SIGCHLD, which torch would replace permanently."""
    was_set, handler = signal_handling._SIGCHLD_handler_set, signal.getsignal(signal.SIGCHLD)  # noqa: SLF001 - torch has no public name
    try:
        yield
    finally:
        if handler is not None and not was_set and signal_handling._SIGCHLD_handler_set:  # noqa: SLF001 - as above
            signal.signal(signal.SIGCHLD, handler)
            signal_handling._SIGCHLD_handler_set = False  # noqa: SLF001 - as above
