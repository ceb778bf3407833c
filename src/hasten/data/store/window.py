"""View a few blocks of a store as one, to pick the rows of batches from them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hasten.core.errors import CorruptError
from hasten.data.store.gather import Index, Picker, picker
from hasten.data.store.reading import Reader

_FETCHING = 8
"""Number of blocks fetched at once: a remote store answers many requests as fast as one."""


class Window:
    """View some blocks of a store as one. Safe for use by several threads.

    Args:
        reader: Reader of the store.
        blocks: Block numbers, in any order.
    """

    def __init__(self, reader: Reader, blocks: Index) -> None:
        self._reader = reader
        self._blocks = np.sort(blocks)
        counts = reader.block_counts[self._blocks]
        # For each block of the store: its index in the window, and its first row in the window less its first row there.
        self._places = np.zeros(len(reader.block_counts), np.int64)
        self._places[self._blocks] = np.arange(len(self._blocks))
        self._shifts = np.zeros(len(reader.block_counts), np.int64)
        self._shifts[self._blocks] = np.cumsum(counts) - counts - reader.block_firsts[self._blocks]
        self._pickers: dict[str, Picker] = {}
        self._guard = threading.Lock()

    def arrow(self, column: str, rows: Index) -> pa.Array:
        """Return rows of an Arrow column by their numbers in the store, all within these blocks, [rows]."""
        return self._picker(column).take(*self._positions(rows))

    def strings(self, column: str, rows: Index) -> list[str | None]:
        """Return rows of a text column as strings, [rows]."""
        return self._picker(column).strings(*self._positions(rows))

    def views(self, column: str, rows: Index) -> list[npt.NDArray[Any]]:
        """Return rows of a raw column as read-only views into the mapped files, [rows] of [*shape]."""
        views: list[npt.NDArray[Any]] = [np.empty(0)] * len(rows)
        shards = self._reader.shards_of(rows)
        for shard in np.unique(shards).tolist():
            places = np.flatnonzero(shards == shard)
            offsets = rows[places] - self._reader.shard_firsts[shard]
            self._reader.need_raw(shard, column, offsets)
            values = self._reader.raw(shard, column)
            for place, row in zip(places.tolist(), offsets.tolist(), strict=True):
                views[place] = values[row, ...]
        return views

    def fetch(self) -> None:
        """Fetch the Arrow blocks now, several at a time. For remote stores."""
        with ThreadPoolExecutor(_FETCHING, thread_name_prefix="hasten-fetch") as pool:
            list(pool.map(self._reader.block, self._blocks.tolist()))

    def open(self, columns: Sequence[str]) -> None:
        """Read the blocks and prepare to pick rows of these Arrow columns."""
        for column in columns:
            self._picker(column)

    def _positions(self, rows: Index) -> tuple[Index, Index]:
        """Return the positions of rows in this window, and the number of blocks in the window before each row's own."""
        blocks = self._reader.blocks_of(rows)
        return rows + self._shifts[blocks], self._places[blocks]

    def _picker(self, column: str) -> Picker:
        with self._guard:
            if column not in self._pickers:
                arrays = [self._reader.block(int(number)).column(column) for number in self._blocks]
                try:
                    self._pickers[column] = picker(arrays)
                except CorruptError as error:
                    raise CorruptError(
                        f"column {column!r} of {self._reader.where} is damaged: {error}. Find the file with `hasten data "
                        f"verify`, then restore it or convert the source again."
                    ) from error
            return self._pickers[column]


def gather_raw(reader: Reader, column: str, rows: Index, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
    """Copy rows of a raw column from anywhere in the store, [rows, *shape], into `out` if given."""
    shards = reader.shards_of(rows)
    firsts = rows - reader.shard_firsts[shards] if len(rows) else rows
    values = reader.raw(int(shards[0]) if len(rows) else 0, column)
    if out is None:
        out = np.empty((len(rows), *values.shape[1:]), values.dtype.newbyteorder("="))
    for shard in np.unique(shards).tolist():
        picked = shards == shard
        reader.need_raw(shard, column, firsts[picked])
        if picked.all():
            take_rows(reader.raw(shard, column), firsts, out)
        else:
            out[picked] = reader.raw(shard, column)[firsts[picked]]
    return out


def take_rows(values: npt.NDArray[Any], rows: Index, out: npt.NDArray[Any]) -> None:
    """Copy existing rows of an array into `out`. NumPy releases the GIL while it copies."""
    np.take(values, rows, axis=0, out=out, mode="clip")  # other modes copy twice
