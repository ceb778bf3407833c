"""Open a store's shards for reading: find the block of a row, and access columns without a copy."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hasten.core.errors import CorruptError, DataError
from hasten.data.store.layout import Manifest, RawColumn, Shard
from hasten.data.store.mapping import Mapped, Source

_OPEN_MAPS = 1024
"""Maximum number of files mapped at once. The system's limit for a process is in the tens of thousands."""
_OPEN_BLOCKS = 64
"""Number of blocks kept open, a few kilobytes each: enough for one or two windows."""

_MOST_HINTED_BYTES = 2**28
"""Maximum number of bytes to read ahead. Reading ahead evicts other files from the page cache."""


class Reader:
    """Read the columns of a store block by block. Safe for use by several threads; a new process opens its own maps.

    Args:
        source: Provides the files.
        manifest: Describes the files.
    """

    def __init__(self, source: Source, manifest: Manifest) -> None:
        self._source, self._manifest = source, manifest
        size = manifest.block_rows
        self._shards: list[Shard] = [shard for shard in manifest.shards if shard.num_rows]
        rows = np.array([shard.num_rows for shard in self._shards], dtype=np.int64)
        blocks = -(-rows // size)
        self.shard_firsts = np.cumsum(rows) - rows
        self._block_firsts = np.cumsum(blocks) - blocks
        counts = np.full(int(blocks.sum()), size, dtype=np.int64)
        if len(rows):
            counts[self._block_firsts + blocks - 1] = rows - (blocks - 1) * size
        self.block_counts = counts
        self.block_firsts = np.cumsum(counts) - counts
        self._maps: OrderedDict[tuple[int, str], Mapped] = OrderedDict()
        self._open: OrderedDict[int, pa.RecordBatch] = OrderedDict()
        self._guard = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        return {"source": self._source, "manifest": self._manifest}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["source"], state["manifest"])  # type: ignore[misc]

    @property
    def where(self) -> str:
        """Return the store's location for messages."""
        return self._source.where

    def blocks_of(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the block of each row, [rows]."""
        if len(self._shards) == 1:  # all blocks but the last have the same size
            return rows // self._manifest.block_rows
        return np.searchsorted(self.block_firsts, rows, side="right") - 1

    def shards_of(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the shard of each row, [rows]."""
        return np.searchsorted(self.shard_firsts, rows, side="right") - 1

    def shard_of(self, firsts: npt.NDArray[np.int64], count: int = 1) -> int | None:
        """Return the shard that contains `count` rows from each of `firsts`; None if there are several shards or none."""
        if len(self._shards) == 1 or not len(firsts):
            return 0 if len(firsts) else None
        one, other = self.shards_of(np.array([firsts.min(), firsts.max() + count - 1])).tolist()
        return int(one) if one == other else None

    def shard_at(self, row: int) -> Shard:
        """Return the shard that contains a row."""
        return self._shards[int(self.shards_of(np.array([row]))[0])]

    def block(self, number: int) -> pa.RecordBatch:
        """Return the Arrow columns of a block, [rows of the block].

        Raises:
            CorruptError: The file does not match the manifest.
        """
        with self._guard:
            if number in self._open:
                self._open.move_to_end(number)
                return self._open[number]
        block = self._read(number)  # without the lock: it may be a remote read
        with self._guard:
            self._open[number] = block
            while len(self._open) > _OPEN_BLOCKS:
                self._open.popitem(last=False)
        return block

    def hint(self, blocks: Sequence[int]) -> None:
        """Ask the system to start reading as many of these blocks as fit in the read-ahead limit, without waiting."""
        remaining_bytes = _MOST_HINTED_BYTES
        for number in blocks:
            mapped, start, end = self._range(number)
            remaining_bytes -= end - start
            if remaining_bytes < 0:
                return
            mapped.hint(start, end)

    def raw(self, shard: int, column: str) -> npt.NDArray[Any]:
        """Return all rows of a raw column of a shard, [rows, *shape]. Only the pages used are read."""
        declared = self._declared(column)
        mapped = self._mapped(shard, column)
        return np.frombuffer(mapped.view, dtype=declared.numpy).reshape(self._shards[shard].num_rows, *declared.shape)

    def need_raw(self, shard: int, column: str, firsts: npt.NDArray[np.int64], count: int = 1) -> None:
        """Fetch rows of a raw column of a remote shard: `count` rows from each of `firsts`."""
        if self._source.is_remote:
            size, mapped = self._declared(column).row_bytes, self._mapped(shard, column)
            for first in firsts.tolist():
                mapped.need(first * size, (first + count) * size)

    def _declared(self, column: str) -> RawColumn:
        declared = self._manifest.raw_column(column)
        if declared is None:
            raise DataError(
                f"{self._source.where} has no raw column {column!r}; its columns are {', '.join(self._manifest.columns)}."
            )
        return declared

    def _mapped(self, shard: int, column: str) -> Mapped:
        with self._guard:
            if (shard, column) not in self._maps:
                self._maps[shard, column] = self._source.open(self._shards[shard].file(column))
                while len(self._maps) > _OPEN_MAPS:
                    self._maps.popitem(last=False)
            self._maps.move_to_end((shard, column))
            return self._maps[shard, column]

    def _read(self, number: int) -> pa.RecordBatch:
        mapped, start, end = self._range(number)
        mapped.need(start, end)
        try:
            block = pa.ipc.read_record_batch(pa.py_buffer(mapped.view[start:end]), self._manifest.schema)
        except (pa.ArrowInvalid, OSError) as error:
            raise CorruptError(f"{self._name(number)} is not an Arrow block ({error}): run `hasten data verify`.") from error
        if block.num_rows != self.block_counts[number]:
            raise CorruptError(
                f"{self._name(number)} has {block.num_rows} rows instead of {self.block_counts[number]}: run `hasten data "
                f"verify`."
            )
        return block

    def _range(self, number: int) -> tuple[Mapped, int, int]:
        """Return the file of a block, and where the block starts and ends in it."""
        shard, index = self._place(number)
        blocks = self._shards[shard].file("").blocks
        return self._mapped(shard, ""), blocks[index], blocks[index + 1]

    def _place(self, number: int) -> tuple[int, int]:
        """Return the shard of a block, and the block's number within the shard."""
        shard = int(np.searchsorted(self._block_firsts, number, side="right")) - 1
        return shard, number - int(self._block_firsts[shard])

    def _name(self, number: int) -> str:
        shard, index = self._place(number)
        return f"block {index} of {self._shards[shard].file('').path} in {self._source.where}"
