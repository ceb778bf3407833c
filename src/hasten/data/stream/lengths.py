"""Determine the lengths of samples without reading them."""

from __future__ import annotations

import threading
from collections import OrderedDict

import numpy as np
import pyarrow as pa

from hasten.core.errors import DataError
from hasten.data.store.gather import Index, is_bytes, is_list, row_lengths
from hasten.data.store.store import Store

_KEPT = 256
"""Number of blocks whose lengths are cached, 16 kilobytes each."""


class Lengths:
    """Determine the lengths of the rows of a store. Safe for use by several threads.

    Args:
        store: The store.
        column: Column of text or bytes (length in bytes), lists (in items), or integers that are lengths.

    Raises:
        DataError: The column has another type.
    """

    def __init__(self, store: Store, column: str) -> None:
        store.checked_columns([column])
        raw = store.manifest.raw_column(column)
        if raw is not None:
            fits = raw.dtype.startswith(("int", "uint")) and not raw.shape
        else:
            kind = store.manifest.schema.field(column).type
            fits = is_bytes(kind) or is_list(kind) or pa.types.is_integer(kind)
        if not fits:
            raise DataError(
                f"column {column!r} has no length: use a column of text, bytes, lists, or integers that are lengths."
            )
        self.store, self.column = store, column
        self._kept: OrderedDict[int, Index] = OrderedDict()
        self._guard = threading.Lock()

    def __getstate__(self) -> dict[str, object]:
        return {"store": self.store, "column": self.column}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def of(self, rows: Index) -> Index:
        """Return the length of each row, [rows]."""
        reader = self.store.reader
        if self.store.manifest.raw_column(self.column) is not None:
            return np.asarray(self.store.take(rows, [self.column])[self.column], dtype=np.int64)
        blocks = reader.blocks_of(rows)
        lengths = np.empty(len(rows), np.int64)
        for number in np.unique(blocks).tolist():
            in_block = blocks == number
            lengths[in_block] = self._block(number)[rows[in_block] - reader.block_firsts[number]]
        return lengths

    def _block(self, number: int) -> Index:
        with self._guard:
            if number in self._kept:
                self._kept.move_to_end(number)
                return self._kept[number]
        array = self.store.reader.block(number).column(self.column)
        if pa.types.is_integer(array.type):
            lengths: Index = array.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        else:
            lengths = row_lengths(array)
        with self._guard:
            self._kept[number] = lengths
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return lengths
