"""What a sample is: a row of the store, or a window of consecutive numbers of a raw column."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hasten.core.errors import DataError
from hasten.data.store.gather import Index
from hasten.data.store.store import Store
from hasten.data.store.window import Window, gather_raw, take_rows
from hasten.data.stream.batch import Columns
from hasten.data.stream.buffers import Buffers


class Samples(ABC):
    """The samples of a store, in blocks that lie together.

    Attributes:
        counts: Samples of each block, [blocks].
    """

    counts: Index

    @property
    def is_remote(self) -> bool:
        """Whether opening the next blocks ahead of time pays."""
        return False

    def hint(self, blocks: Index) -> None:  # noqa: B027  most have nothing to do
        """Have the system begin to read these blocks, where that is of use; nobody waits."""

    @abstractmethod
    def open(self, blocks: Index) -> Any:
        """What is needed to take samples of these blocks; kept while they are in use."""

    @abstractmethod
    def take(self, opened: Any, samples: Index, buffers: Buffers) -> Columns:
        """Samples by number, all of the blocks that were opened: a column each, [samples, ...]."""


class RowSamples(Samples):
    """Each row is a sample.

    Args:
        store: Of the rows.
        columns: Those wanted.
        strings: Of these, text columns that come as lists of strings.
        views: Of these, raw columns that come as lists of views into the mapped store.
    """

    def __init__(
        self, store: Store, columns: Sequence[str] | None, strings: Sequence[str], views: Sequence[str] = ()
    ) -> None:
        self._store = store
        self._columns = store.checked_columns(columns)
        self._strings, self._views = frozenset(strings), frozenset(views)
        for said, names in (("strings", self._strings), ("views", self._views)):
            for name in sorted(names - set(self._columns)):
                raise DataError(f"{said} names {name!r}, which is not among the columns {', '.join(self._columns)}.")
        for name in sorted(self._views):
            if store.manifest.raw_column(name) is None:
                raise DataError(f"views names {name!r}, which is no raw column: only those can be seen in place.")
        self.counts = store.reader.block_counts
        self._in_blocks = [name for name in self._columns if store.manifest.raw_column(name) is None]
        self._whole: Window | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_whole": None}

    @property
    def is_remote(self) -> bool:
        """Whether the store is."""
        return self._store.source.is_remote

    def open(self, blocks: Index) -> Window:
        """The window of these blocks; from afar, their Arrow columns come at once. That of all blocks serves every epoch."""
        if self._whole is not None and len(blocks) == len(self.counts):
            return self._whole
        window = Window(self._store.reader, blocks)
        if not self._store.source.is_remote:
            self._whole = window if len(blocks) == len(self.counts) else None
        elif len(self._store.manifest.schema):
            window.fetch()
        window.open(self._in_blocks)
        return window

    def hint(self, blocks: Index) -> None:
        """Of Arrow columns; rows of raw ones are read where they stand. Nothing where all blocks are open already."""
        if self._in_blocks and self._whole is None:
            self._store.reader.hint(blocks.tolist())

    def take(self, opened: Window, samples: Index, buffers: Buffers) -> Columns:
        """Rows by number."""
        taken: Columns = {}
        for name in self._columns:
            raw = self._store.manifest.raw_column(name)
            if name in self._views:
                taken[name] = opened.views(name, samples)
            elif raw is not None:
                out = buffers.empty((len(samples), *raw.shape), raw.numpy.newbyteorder("="))
                taken[name] = gather_raw(self._store.reader, name, samples, out)
            elif name in self._strings:
                taken[name] = opened.strings(name, samples)
            else:
                taken[name] = opened.arrow(name, samples)
        return taken


class WindowSamples(Samples):
    """Each sample is a window of consecutive rows of a raw column of single numbers, as in a stream of tokens.

    Args:
        store: Of the numbers.
        column: Which raw column; its rows are single numbers.
        length: Numbers of a window.
        stride: From the start of one window to the next.
    """

    BLOCK = 2048

    def __init__(self, store: Store, column: str, length: int, stride: int) -> None:
        raw = store.manifest.raw_column(column)
        if raw is None or raw.shape:
            raise DataError(
                f"windows are cut from a raw column of single numbers, which {column!r} of {store.source.where} is not; "
                f"it has "
                f"{', '.join(store.columns)}."
            )
        if length < 1 or stride < 1:
            raise DataError(f"length and stride of windows must be at least 1, not {length} and {stride}.")
        if len(store) < length:
            raise DataError(f"{store.source.where} holds {len(store):,} numbers, fewer than one window of {length}.")
        self._store, self._column, self._length, self._stride = store, column, length, stride
        self._dtype = raw.numpy
        count = (len(store) - length) // stride + 1
        self.counts = np.full(-(-count // self.BLOCK), self.BLOCK, dtype=np.int64)
        self.counts[-1] = count - (len(self.counts) - 1) * self.BLOCK

    def open(self, blocks: Index) -> None:
        """Nothing: the shards are mapped once."""

    def take(self, opened: None, samples: Index, buffers: Buffers) -> Columns:
        """Windows by number, [windows, length]."""
        out = buffers.empty((len(samples), self._length), self._dtype.newbyteorder("="))
        reader, firsts = self._store.reader, samples * self._stride
        shard = reader.shard_of(firsts, self._length)
        if shard is not None:  # as in every store of one shard: nothing to sort out
            self._take_of_one(shard, firsts, out)
            return {self._column: out}
        shards, last = reader.shards_of(firsts), reader.shards_of(firsts + self._length - 1)
        for shard in np.unique(shards).tolist():
            whole = np.flatnonzero((shards == shard) & (last == shard))
            if len(whole):
                starts = firsts[whole] - reader.shard_firsts[shard]
                reader.need_raw(shard, self._column, starts, self._length)
                out[whole] = _windows(reader.raw(shard, self._column), starts, self._length)
        for number in np.flatnonzero(shards != last).tolist():
            self._stitch(int(firsts[number]), out[number])
        return {self._column: out}

    def _take_of_one(self, shard: int, firsts: Index, out: npt.NDArray[Any]) -> None:
        """Windows that all lie in one shard, by where they begin; as rows of a table, where none overlap another."""
        reader, length = self._store.reader, self._length
        begin = int(reader.shard_firsts[shard])
        starts = firsts - begin if begin else firsts
        reader.need_raw(shard, self._column, starts, length)
        values = reader.raw(shard, self._column)
        if self._stride % length:
            out[:] = _windows(values, starts, length)
            return
        before = -begin % length  # what belongs to a window that begins in the shard before
        table = values[before : before + (len(values) - before) // length * length].reshape(-1, length)
        take_rows(table, starts // length, out)  # the remainder of each is `before`

    def _stitch(self, first: int, out: npt.NDArray[Any]) -> None:
        """A window that reaches over the end of a shard, or of several."""
        done = 0
        reader = self._store.reader
        while done < self._length:
            shard = int(reader.shards_of(np.array([first + done]))[0])
            values = reader.raw(shard, self._column)
            at = first + done - int(reader.shard_firsts[shard])
            reader.need_raw(shard, self._column, np.array([at]), min(self._length - done, len(values) - at))
            part = values[at : at + self._length - done]
            out[done : done + len(part)] = part
            done += len(part)


def _windows(values: npt.NDArray[Any], starts: Index, length: int) -> npt.NDArray[Any]:
    """Copies of windows of `values`, [windows, length]."""
    return np.lib.stride_tricks.sliding_window_view(values, length)[starts]
