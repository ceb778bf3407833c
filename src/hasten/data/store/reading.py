"""A store's shards opened for reading: which block a row stands in, and its columns without a copy."""

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
"""Files mapped at once; the system allows a process some ten thousands."""
_OPEN_BLOCKS = 64
"""Blocks kept open, a few kilobytes each: those of a window or two."""

_MOST_HINTED_BYTES = 2**28
"""Asked for before it is needed: it takes the place of other files in memory."""


class Reader:
    """The columns of a store, block by block. For any number of threads; a new process opens its own maps.

    Args:
        source: Where the files come from.
        manifest: What they hold.
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
        """The store's place, as a person would name it."""
        return self._source.where

    def blocks_of(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The block that each row stands in, [rows]."""
        if len(self._shards) == 1:  # all blocks but the last are of one size
            return rows // self._manifest.block_rows
        return np.searchsorted(self.block_firsts, rows, side="right") - 1

    def shards_of(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The shard that each row stands in, [rows]."""
        return np.searchsorted(self.shard_firsts, rows, side="right") - 1

    def shard_of(self, firsts: npt.NDArray[np.int64], count: int = 1) -> int | None:
        """The shard that `count` rows from each of `firsts` stand in; None where they are of several, or of none."""
        if len(self._shards) == 1 or not len(firsts):
            return 0 if len(firsts) else None
        one, other = self.shards_of(np.array([firsts.min(), firsts.max() + count - 1])).tolist()
        return int(one) if one == other else None

    def shard_at(self, row: int) -> Shard:
        """The shard that a row stands in."""
        return self._shards[int(self.shards_of(np.array([row]))[0])]

    def block(self, number: int) -> pa.RecordBatch:
        """The Arrow columns of a block, [its rows].

        Raises:
            CorruptError: The file does not hold what the manifest says.
        """
        with self._guard:
            if number in self._open:
                self._open.move_to_end(number)
                return self._open[number]
        block = self._read(number)  # outside of the lock: it may come from afar
        with self._guard:
            self._open[number] = block
            while len(self._open) > _OPEN_BLOCKS:
                self._open.popitem(last=False)
        return block

    def hint(self, blocks: Sequence[int]) -> None:
        """Have the system begin to read blocks, as many as should be in memory early; nobody waits."""
        left = _MOST_HINTED_BYTES
        for number in blocks:
            mapped, start, end = self._range(number)
            left -= end - start
            if left < 0:
                return
            mapped.hint(start, end)

    def raw(self, shard: int, column: str) -> npt.NDArray[Any]:
        """All rows of a raw column of a shard, [rows, *shape]; reading touches only what is used of it."""
        kept = self._kept(column)
        mapped = self._mapped(shard, column)
        return np.frombuffer(mapped.view, dtype=kept.numpy).reshape(self._shards[shard].num_rows, *kept.shape)

    def need_raw(self, shard: int, column: str, firsts: npt.NDArray[np.int64], count: int = 1) -> None:
        """Have rows of a raw column of a shard here, where they come from afar: `count` of them from each of `firsts`."""
        if self._source.is_remote:
            size, mapped = self._kept(column).row_bytes, self._mapped(shard, column)
            for first in firsts.tolist():
                mapped.need(first * size, (first + count) * size)

    def _kept(self, column: str) -> RawColumn:
        kept = self._manifest.raw_column(column)
        if kept is None:
            raise DataError(
                f"{self._source.where} has no raw column {column!r}; it has {', '.join(self._manifest.columns)}."
            )
        return kept

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
            raise CorruptError(f"{self._name(number)} is no Arrow block ({error}): run `hasten data verify`.") from error
        if block.num_rows != self.block_counts[number]:
            raise CorruptError(
                f"{self._name(number)} has {block.num_rows} rows instead of {self.block_counts[number]}: run `hasten data "
                f"verify`."
            )
        return block

    def _range(self, number: int) -> tuple[Mapped, int, int]:
        """The file of a block, and from where to where it stands there."""
        shard, at = self._place(number)
        blocks = self._shards[shard].file("").blocks
        return self._mapped(shard, ""), blocks[at], blocks[at + 1]

    def _place(self, number: int) -> tuple[int, int]:
        """The shard of a block, and its number there."""
        shard = int(np.searchsorted(self._block_firsts, number, side="right")) - 1
        return shard, number - int(self._block_firsts[shard])

    def _name(self, number: int) -> str:
        shard, at = self._place(number)
        return f"block {at} of {self._shards[shard].file('').path} in {self._source.where}"
