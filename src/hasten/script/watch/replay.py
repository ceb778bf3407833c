"""Return cached batches instead of the loader's, to measure how fast the steps would be if data were free."""

from __future__ import annotations

import copy
import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from hasten.core.batch import batch_bytes
from hasten.script.data.workers import WorkerLoader
from hasten.script.watch.record import Recorder

KEPT = 8
"""Number of batches that are cached."""
MAX_BYTES = 1 << 30
"""Bytes of cached batches above which no more batches are cached."""


class Replay:
    """Caches the first batches of the first training loader, and returns them repeatedly.

    A loader is not the training loader if another loader is read before the first step.

    The length of an epoch does not change if the loader knows it. The epoch starts without worker processes, which would
    use cores for unused batches.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._kept: list[Any] = []
        self._bytes = 0
        self._source: Callable[[], Any] | None = None
        self._turn = 0
        self._replaying = False

    def next(self, iterator: Any, original: Callable[[Any], Any]) -> Any:
        """Return the next batch of an iterator, cached or fetched.

        Raises:
            StopIteration: The epoch has reached its usual number of batches.
        """
        data = iterator._dataset  # noqa: SLF001 - torch has no public name for it
        if self._source is None or (not self._recorder.num_steps and not self._is_source(data)):
            self._source, self._kept, self._bytes, self._replaying = _reference(data), [], 0, False
        if not self._is_source(data):
            return original(iterator)
        if not self._replaying:
            return self._keep(iterator, original)
        length = _length(iterator)
        if length is not None and iterator._num_yielded >= length:  # noqa: SLF001 - as above
            raise StopIteration
        iterator._num_yielded += 1  # noqa: SLF001 - as above
        self._turn += 1
        return _fresh(self._kept[self._turn % len(self._kept)])

    def wrap(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Wrap the loader's `__iter__`."""

        @functools.wraps(original)
        def iter_seam(loader: Any) -> Any:
            watched = self._replaying and self._recorder.free() and torch.is_grad_enabled()
            if not watched or not self._is_source(loader.dataset) or not _begins_workers(loader):
                return original(loader)
            return _KeptEpoch(loader, original)

        return iter_seam

    def _is_source(self, data: Any) -> bool:
        return self._source is not None and self._source() is data

    def _keep(self, iterator: Any, original: Callable[[Any], Any]) -> Any:
        try:
            batch = original(iterator)
        except StopIteration:
            self._begin()
            raise
        self._kept.append(_fresh(batch))
        self._bytes += batch_bytes(batch)
        if len(self._kept) >= KEPT or self._bytes > MAX_BYTES:
            self._begin()
        return batch

    def _begin(self) -> None:
        if self._kept:
            self._replaying = True
            self._recorder.restart()


class _KeptEpoch(_BaseDataLoaderIter):
    """An epoch of cached batches, which `Replay.next` returns. Once watching stops, the loader's own batches follow.

    Args:
        loader: The loader.
        original: The loader's `__iter__`.
    """

    def __init__(self, loader: Any, original: Callable[[Any], Any]) -> None:
        super().__init__(loader)
        self._begin: Callable[[], Any] = functools.partial(original, loader)
        self._own: Any = None

    def _next_data(self) -> Any:
        length = _length(self)
        if length is not None and self._num_yielded >= length:
            raise StopIteration
        if self._own is None:
            self._own = self._begin()
        return next(self._own)


def _begins_workers(loader: Any) -> bool:
    """Return whether torch starts worker processes for the loader's epochs."""
    torchs_own = type(loader)._get_iterator is DataLoader._get_iterator  # noqa: SLF001 - a subclass may create other iterators
    return bool(loader.num_workers) and torchs_own and not isinstance(loader, WorkerLoader)


def _reference(data: Any) -> Callable[[], Any]:
    """Return a reference that identifies a dataset. An address could be reused; a list has no weak references."""
    try:
        return weakref.ref(data)
    except TypeError:
        return lambda: data


def _length(iterator: Any) -> int | None:
    try:
        return len(iterator)
    except TypeError:
        return None


def _fresh(batch: Any) -> Any:
    """Return the same tensors in a new container, because scripts remove items from their batches."""
    return copy.copy(batch) if isinstance(batch, dict | list) else batch
