"""Open the windows of an epoch when they are needed, and pick batches from them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow as pa

from hasten.data.stream.batch import Columns
from hasten.data.stream.buffers import Buffers
from hasten.data.stream.order import Order, Part
from hasten.data.stream.samples import Samples

_KEPT = 3
"""Number of windows open at once: the current one, the next one, and one for a thread that lags behind."""
_FROM_DISK_SECONDS = 0.0004
"""Time per block above which a window counts as read from disk. A 3 MB block in memory takes a quarter of it."""


class Opened:
    """Take samples by their position in an epoch. Safe for use by several threads.

    Args:
        samples: Samples of the store.
        order: Order of the epoch.
    """

    def __init__(self, samples: Samples, order: Order) -> None:
        self._samples, self._order = samples, order
        self._kept: OrderedDict[int, Future[Any]] = OrderedDict()
        self._guard = threading.Lock()
        self._from_disk: bool | None = None  # unknown until a window was opened
        self._ahead = ThreadPoolExecutor(1, thread_name_prefix="hasten-ahead") if samples.is_remote else None

    def take(self, parts: list[Part], buffers: Buffers) -> Columns:
        """Return samples, window by window, with one entry per column."""
        if not parts:
            parts = self._order.parts(0, 1)
            return {name: values[:0] for name, values in self._part(parts[0].window, parts[0].samples, buffers).items()}
        taken = [self._part(part.window, part.samples, buffers) for part in parts]
        return taken[0] if len(taken) == 1 else {name: joined([part[name] for part in taken]) for name in taken[0]}

    def close(self) -> None:
        """Stop opening windows."""
        if self._ahead is not None:
            self._ahead.shutdown(wait=False, cancel_futures=True)

    def _part(self, window: int, samples: Any, buffers: Buffers) -> Columns:
        with self._guard:
            opened, new_window = self._future(window)
            if self._ahead is not None and window + 1 < self._order.num_windows:
                following, new = self._future(window + 1)
                if new:
                    self._ahead.submit(self._open, window + 1, following)
        if new_window:
            self._open(window, opened)
        return self._samples.take(opened.result(), samples, buffers)

    def _future(self, window: int) -> tuple[Future[Any], bool]:
        """Return the window's future, and True if the caller must fulfil it. Call it with the lock held."""
        new = window not in self._kept
        if new:
            while len(self._kept) >= _KEPT:
                self._kept.popitem(last=False)
            self._kept[window] = Future()
        self._kept.move_to_end(window)
        return self._kept[window], new

    def _open(self, window: int, future: Future[Any]) -> None:
        try:
            future.set_result(self._read(window))
        except BaseException as error:  # noqa: BLE001  raised where the window is used
            with self._guard:
                self._kept.pop(window, None)  # the next caller tries again
            future.set_exception(error)

    def _read(self, window: int) -> Any:
        """Open a window. If it had to be read from disk, ask the system to read the next one ahead.

        The system then reads the blocks of a window together, in large pieces, while the previous window is in use.
        """
        blocks, started = self._order.blocks_of(window), perf_counter()
        if self._from_disk is None:
            self._samples.hint(blocks)
        opened = self._samples.open(blocks)
        self._from_disk = self._from_disk or perf_counter() - started > _FROM_DISK_SECONDS * len(blocks)
        if self._from_disk and window + 1 < self._order.num_windows:
            self._samples.hint(self._order.blocks_of(window + 1))
        return opened


def joined(parts: list[Any]) -> Any:
    """Concatenate the rows of several windows."""
    if isinstance(parts[0], pa.Array):
        return pa.concat_arrays(parts)
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    return [value for part in parts for value in part]
