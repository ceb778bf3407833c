"""Batch samples of similar length to reduce padding, while keeping the order random.

A pool of consecutive positions, many batches long, is sorted by length and split into batches. The order of the batches and
the order within each batch are random. Both depend only on (seed, epoch, pool), so positions stay stable.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

import numpy as np

from hasten.core.seeding import mix
from hasten.data.store.gather import Index
from hasten.data.stream.lengths import Lengths
from hasten.data.stream.order import Order, Part

POOL_BATCHES = 64
"""Number of batches sorted together. Larger pools have less padding and move samples further."""
_SALT = 3
_KEPT = 3


class Buckets:
    """Order an epoch so that samples of similar length are together. Safe for use by several threads.

    Args:
        order: Order of the epoch.
        lengths: Lengths of the samples.
        seed: Seed of the shuffle.
        epoch: Number of the epoch.
    """

    def __init__(self, order: Order, lengths: Lengths, *, seed: int, epoch: int) -> None:
        self._order, self._lengths = order, lengths
        self._seed, self._epoch = seed, epoch
        self._kept: OrderedDict[tuple[int, int], tuple[Index, Index]] = OrderedDict()
        self._guard = threading.Lock()

    def parts(self, start: int, end: int, batch: int) -> list[Part]:
        """Return the samples at positions `start` to `end` (exclusive), for global batches of `batch` samples."""
        size = batch * POOL_BATCHES
        samples, windows = [], []
        while start < end:
            pool = start // size
            until = min(end, (pool + 1) * size)
            ordered, ordered_windows = self._pool(pool, batch)
            samples.append(ordered[start - pool * size : until - pool * size])
            windows.append(ordered_windows[start - pool * size : until - pool * size])
            start = until
        if not samples:
            return []
        all_samples, all_windows = np.concatenate(samples), np.concatenate(windows)
        return [Part(int(w), all_samples[all_windows == w]) for w in dict.fromkeys(all_windows.tolist())]

    def _pool(self, pool: int, batch: int) -> tuple[Index, Index]:
        with self._guard:
            if (pool, batch) not in self._kept:
                while len(self._kept) >= _KEPT:
                    self._kept.popitem(last=False)
                self._kept[pool, batch] = self._sorted(pool, batch)
            return self._kept[pool, batch]

    def _sorted(self, pool: int, batch: int) -> tuple[Index, Index]:
        """Return the samples of a pool in their new order, and the window of each."""
        size = batch * POOL_BATCHES
        parts = self._order.parts(pool * size, min((pool + 1) * size, self._order.num_samples))
        samples = np.concatenate([part.samples for part in parts])
        windows = np.concatenate([np.full(len(part.samples), part.window) for part in parts])
        random = np.random.Generator(np.random.Philox(mix(self._seed, self._epoch, _SALT, pool)))
        # Samples that do not fill a batch are drawn before sorting: otherwise the longest would always come last.
        whole = len(samples) - len(samples) % batch
        drawn = random.permutation(len(samples))
        rest, kept = drawn[whole:], drawn[:whole]
        sorted_kept = kept[np.argsort(self._lengths.of(samples[kept]), kind="stable")].reshape(-1, batch)
        mixed = random.permuted(random.permutation(sorted_kept, axis=0), axis=1)
        order = np.concatenate((mixed.reshape(-1), rest))
        return samples[order], windows[order]
