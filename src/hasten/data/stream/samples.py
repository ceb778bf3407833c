"""Define samples: rows of the store, or windows of consecutive numbers of a raw column."""

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
    """Access the samples of a store, grouped into blocks.

    Attributes:
        counts: Number of samples in each block, [blocks].
    """

    counts: Index

    @property
    def is_remote(self) -> bool:
        """Return True if opening the next blocks ahead of time pays off."""
        return False

    def hint(self, blocks: Index) -> None:  # noqa: B027  most subclasses do not need it
        """Ask the system to start reading these blocks, if that helps, without waiting."""

    @abstractmethod
    def open(self, blocks: Index) -> Any:
        """Return what is needed to take samples of these blocks. It is kept while the blocks are in use."""

    @abstractmethod
    def take(self, opened: Any, samples: Index, buffers: Buffers) -> Columns:
        """Return samples by number, all from the opened blocks, with one entry per column, [samples, ...]."""


class RowSamples(Samples):
    """Use each row as a sample.

    Args:
        store: Store with the rows.
        columns: Columns to read; None reads all.
        strings: Text columns among them to return as lists of strings.
        views: Raw columns among them to return as lists of views into the mapped store.
    """

    def __init__(
        self, store: Store, columns: Sequence[str] | None, strings: Sequence[str], views: Sequence[str] = ()
    ) -> None:
        self._store = store
        self._columns = store.checked_columns(columns)
        self._strings, self._views = frozenset(strings), frozenset(views)
        for argument, names in (("strings", self._strings), ("views", self._views)):
            for name in sorted(names - set(self._columns)):
                raise DataError(f"{argument} contains {name!r}, which is not one of the columns {', '.join(self._columns)}.")
        for name in sorted(self._views):
            if store.manifest.raw_column(name) is None:
                raise DataError(
                    f"views contains {name!r}, which is not a raw column: only raw columns can be viewed in place."
                )
        self.counts = store.reader.block_counts
        self._in_blocks = [name for name in self._columns if store.manifest.raw_column(name) is None]
        self._whole: Window | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_whole": None}

    @property
    def is_remote(self) -> bool:
        """Return True if the store is remote."""
        return self._store.source.is_remote

    def open(self, blocks: Index) -> Window:
        """Open the window of these blocks, and fetch the blocks of remote stores. A window of all blocks is reused."""
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
        """Read Arrow blocks ahead, unless all blocks are open. Rows of raw columns are read in place."""
        if self._in_blocks and self._whole is None:
            self._store.reader.hint(blocks.tolist())

    def take(self, opened: Window, samples: Index, buffers: Buffers) -> Columns:
        """Return rows by number."""
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
    """Use windows of consecutive rows of a raw column as samples, for example of a stream of tokens, or of fields in time.

    Args:
        store: Store with the numbers.
        column: Name of the raw column.
        length: Length of a window.
        stride: Distance between the starts of two consecutive windows.
    """

    BLOCK = 2048

    def __init__(self, store: Store, column: str, length: int, stride: int) -> None:
        raw = store.manifest.raw_column(column)
        if raw is None:
            raise DataError(
                f"windows need a raw column, whose rows all have one shape, but {column!r} of {store.source.where} is not "
                f"one; its columns are {', '.join(store.columns)}."
            )
        if length < 1 or stride < 1:
            raise DataError(f"length and stride of windows must be at least 1, not {length} and {stride}.")
        if len(store) < length:
            raise DataError(f"{store.source.where} contains {len(store):,} rows, fewer than one window of {length}.")
        self._store, self._column, self._length, self._stride = store, column, length, stride
        self._dtype, self._shape = raw.numpy, raw.shape
        count = (len(store) - length) // stride + 1
        self.counts = np.full(-(-count // self.BLOCK), self.BLOCK, dtype=np.int64)
        self.counts[-1] = count - (len(self.counts) - 1) * self.BLOCK

    def open(self, blocks: Index) -> None:
        """Do nothing: shards are mapped once."""

    def take(self, opened: None, samples: Index, buffers: Buffers) -> Columns:
        """Return windows by number, [windows, length, *shape of a row]."""
        out = buffers.empty((len(samples), self._length, *self._shape), self._dtype.newbyteorder("="))
        reader, firsts = self._store.reader, samples * self._stride
        shard = reader.shard_of(firsts, self._length)
        if shard is not None:  # always true for stores with one shard
            self._take_from_one(shard, firsts, out)
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

    def _take_from_one(self, shard: int, firsts: Index, out: npt.NDArray[Any]) -> None:
        """Copy windows within one shard, given their first rows. Windows without overlap are copied as rows of a table."""
        reader, length = self._store.reader, self._length
        begin = int(reader.shard_firsts[shard])
        starts = firsts - begin if begin else firsts
        reader.need_raw(shard, self._column, starts, length)
        values = reader.raw(shard, self._column)
        if self._stride % length:
            out[:] = _windows(values, starts, length)
            return
        before = -begin % length  # numbers of a window that begins in the previous shard
        table = values[before : before + (len(values) - before) // length * length].reshape(-1, length, *self._shape)
        take_rows(table, starts // length, out)  # each start has the remainder `before`

    def _stitch(self, first: int, out: npt.NDArray[Any]) -> None:
        """Copy a window that spans several shards."""
        done = 0
        reader = self._store.reader
        while done < self._length:
            shard = int(reader.shards_of(np.array([first + done]))[0])
            values = reader.raw(shard, self._column)
            index = first + done - int(reader.shard_firsts[shard])
            reader.need_raw(shard, self._column, np.array([index]), min(self._length - done, len(values) - index))
            part = values[index : index + self._length - done]
            out[done : done + len(part)] = part
            done += len(part)


def _windows(values: npt.NDArray[Any], starts: Index, length: int) -> npt.NDArray[Any]:
    """Return copies of windows of `values`, [windows, length, *shape of a row]."""
    return np.moveaxis(np.lib.stride_tricks.sliding_window_view(values, length, axis=0), -1, 1)[starts]
