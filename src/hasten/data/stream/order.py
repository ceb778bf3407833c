"""Compute the order of an epoch as a pure function of (seed, epoch, position), without any state.

Reading rows in an order drawn over the whole store would touch a disk page for every row. Instead, blocks are shuffled, and
then the rows within a window of a few blocks. Rows that are read together are close together, and a batch still mixes the
blocks of its window. Any position can be computed directly, so a run that was stopped anywhere can resume there, with any
number of workers and ranks.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from hasten.core.seeding import mix

Rows: TypeAlias = npt.NDArray[np.int64]
_BLOCKS, _WITHIN = 1, 2
"""Salts for the order of blocks and for the order within a window, so that the two are independent."""
_KEPT = 4
"""Number of windows whose order is cached: several workers may read batches from neighbouring windows."""


@dataclass(frozen=True)
class Part:
    """Describe consecutive positions of an epoch within one window.

    Attributes:
        window: Number of the window in this epoch.
        samples: Sample numbers in the store, [positions].
    """

    window: int
    samples: Rows


class Order:
    """Compute an epoch's order of the samples of a store.

    Args:
        counts: Number of samples in each block, in the order of the store, [blocks].
        seed: Seed of the shuffle.
        epoch: Number of the epoch, from 0.
        shuffle: Shuffle the samples; if False, they keep the order of the store.
        window_blocks: Number of blocks whose samples are mixed; at least 1.
    """

    def __init__(self, counts: Rows, *, seed: int, epoch: int, shuffle: bool, window_blocks: int) -> None:
        self._seed, self._epoch, self._shuffle = seed, epoch, shuffle
        self._counts = counts
        self._firsts = np.cumsum(counts) - counts
        self._blocks = np.arange(len(counts))
        if shuffle:
            _generator(seed, epoch, _BLOCKS).shuffle(self._blocks)
        self._window_blocks = window_blocks
        ends = np.cumsum(counts[self._blocks])
        last = np.arange(window_blocks, len(counts) + window_blocks, window_blocks).clip(max=len(counts)) - 1
        self._ends: list[int] = ends[last].tolist() if len(counts) else []
        self._kept: OrderedDict[int, Rows] = OrderedDict()
        self._guard = threading.Lock()

    @property
    def num_samples(self) -> int:
        """Return the number of samples in the epoch."""
        return self._ends[-1] if self._ends else 0

    @property
    def num_windows(self) -> int:
        """Return the number of windows in the epoch."""
        return len(self._ends)

    def blocks_of(self, window: int) -> Rows:
        """Return the blocks of a window, by their number in the store."""
        return self._blocks[window * self._window_blocks : (window + 1) * self._window_blocks]

    def parts(self, start: int, end: int) -> list[Part]:
        """Return the samples at positions `start` to `end` (exclusive), window by window."""
        parts = []
        while start < end:
            window = bisect_right(self._ends, start)
            first = self._ends[window - 1] if window else 0
            until = min(end, self._ends[window])
            parts.append(Part(window, self._samples(window)[start - first : until - first]))
            start = until
        return parts

    def _samples(self, window: int) -> Rows:
        with self._guard:
            if window not in self._kept:
                while len(self._kept) >= _KEPT:
                    self._kept.popitem(last=False)
                self._kept[window] = self._made(window)
            self._kept.move_to_end(window)
            return self._kept[window]

    def _made(self, window: int) -> Rows:
        blocks = self.blocks_of(window)
        counts = self._counts[blocks]
        samples, end = np.empty(int(counts.sum()), np.int64), 0  # filled in place: allocating costs more than filling
        for first, count in zip(self._firsts[blocks].tolist(), counts.tolist(), strict=True):
            samples[end : end + count] = np.arange(first, first + count)
            end += count
        if self._shuffle:
            _generator(self._seed, self._epoch, _WITHIN, window).shuffle(samples)
        return samples


def _generator(*parts: int) -> np.random.Generator:
    """Create a Philox random generator (Salmon et al. 2011), which gives the same numbers on every machine."""
    return np.random.Generator(np.random.Philox(mix(*parts)))
