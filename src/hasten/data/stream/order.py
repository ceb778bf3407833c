"""The order of an epoch as a pure function of (seed, epoch, position): nothing to remember, nothing to send around.

Reading rows in an order drawn over the whole store would touch a page of the disk for every row. So blocks are shuffled,
and then the rows within a window of a few blocks: what is read together lies near together, and a batch still mixes the
blocks of its window. Any position can be asked for at once, so that a run stopped anywhere goes on there, whatever the
number of workers and ranks was or will be.
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
"""Salts: the order of the blocks, and that of the samples within a window, must not follow one another."""
_KEPT = 4
"""Windows whose order is kept at hand: the batches of several workers may come from neighbours."""


@dataclass(frozen=True)
class Part:
    """Consecutive positions of an epoch that lie within one window.

    Attributes:
        window: Its number in this epoch.
        samples: Which samples of the store, [positions].
    """

    window: int
    samples: Rows


class Order:
    """An epoch's order of the samples of a store.

    Args:
        counts: Samples of each block, in the order of the store, [blocks].
        seed: Of the shuffle.
        epoch: Whose order; 0 is the first.
        shuffle: Off, samples come as they are stored.
        window_blocks: Blocks whose samples are mixed; at least 1.
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
        """Samples of the epoch."""
        return self._ends[-1] if self._ends else 0

    @property
    def num_windows(self) -> int:
        """Windows of the epoch."""
        return len(self._ends)

    def blocks_of(self, window: int) -> Rows:
        """The blocks of a window, by their number in the store."""
        return self._blocks[window * self._window_blocks : (window + 1) * self._window_blocks]

    def parts(self, start: int, end: int) -> list[Part]:
        """What stands at positions `start` to `end` (not included), window by window."""
        found = []
        while start < end:
            window = bisect_right(self._ends, start)
            first = self._ends[window - 1] if window else 0
            until = min(end, self._ends[window])
            found.append(Part(window, self._samples(window)[start - first : until - first]))
            start = until
        return found

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
        samples, end = np.empty(int(counts.sum()), np.int64), 0  # filled in place: fresh memory costs more than filling it
        for first, count in zip(self._firsts[blocks].tolist(), counts.tolist(), strict=True):
            samples[end : end + count] = np.arange(first, first + count)
            end += count
        if self._shuffle:
            _generator(self._seed, self._epoch, _WITHIN, window).shuffle(samples)
        return samples


def _generator(*parts: int) -> np.random.Generator:
    """Random numbers by Philox (Salmon et al. 2011): the same on every machine."""
    return np.random.Generator(np.random.Philox(mix(*parts)))
