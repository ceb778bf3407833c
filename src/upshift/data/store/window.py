"""A few blocks of a store seen as one, to pick the rows of batches from."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upshift.data.store.gather import Index, Picker, picker
from upshift.data.store.reading import Reader

_FETCHING = 8
"""Blocks fetched at once: a remote store answers many requests as fast as one."""


class Window:
    """Some blocks of a store. Safe for several threads.

    Args:
        reader: Of the store.
        blocks: By number, in any order.
    """

    def __init__(self, reader: Reader, blocks: Index) -> None:
        self._reader = reader
        self._blocks = np.sort(blocks)
        self._firsts = reader.block_firsts[self._blocks]
        counts = reader.block_counts[self._blocks]
        self._before = np.cumsum(counts) - counts
        self._pickers: dict[str, Picker] = {}
        self._guard = threading.Lock()

    def arrow(self, column: str, rows: Index) -> pa.Array:
        """Rows of the store, all within these blocks, of a column kept in Arrow blocks, [rows]."""
        return self._picker(column).take(self._at(rows))

    def strings(self, column: str, rows: Index) -> list[str | None]:
        """The same as strings, [rows]."""
        return self._picker(column).strings(self._at(rows))

    def raw(self, column: str, rows: Index, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Rows of a raw column, [rows, *shape]; into `out`, where that is given."""
        return gather_raw(self._reader, column, rows, out)

    def fetch(self) -> None:
        """Read the Arrow blocks now, several at a time: they come from afar."""
        with ThreadPoolExecutor(_FETCHING, thread_name_prefix="upshift-fetch") as pool:
            list(pool.map(self._reader.block, self._blocks.tolist()))

    def _at(self, rows: Index) -> Index:
        """Where rows of the store stand in this window."""
        slots = np.searchsorted(self._firsts, rows, side="right") - 1
        found: Index = rows - self._firsts[slots] + self._before[slots]
        return found

    def _picker(self, column: str) -> Picker:
        with self._guard:
            if column not in self._pickers:
                self._pickers[column] = picker([self._reader.block(int(number)).column(column) for number in self._blocks])
            return self._pickers[column]


def gather_raw(reader: Reader, column: str, rows: Index, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
    """Rows of a raw column from anywhere in the store, [rows, *shape]; into `out`, where that is given."""
    shards = reader.shards_of(rows)
    firsts = rows - reader.shard_firsts[shards] if len(rows) else rows
    values = reader.raw(int(shards[0]) if len(rows) else 0, column)
    if out is None:
        out = np.empty((len(rows), *values.shape[1:]), values.dtype.newbyteorder("="))
    for shard in np.unique(shards).tolist():
        picked = shards == shard
        reader.need_raw(shard, column, firsts[picked])
        if picked.all():
            np.take(reader.raw(shard, column), firsts, axis=0, out=out, mode="clip")
        else:
            out[picked] = reader.raw(shard, column)[firsts[picked]]
    return out
