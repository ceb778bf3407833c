"""Pack documents into rows of equal length with almost no padding.

A pool of consecutive documents is packed by best fit, longest first (Johnson 1973; Krell et al. 2021 for training): each
document goes into the fullest row that has room for it. Documents longer than a row are split. The packing of a pool depends
only on (seed, epoch, pool), so the state is a pool and a position in it, with any number of workers and ranks.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hasten.core.errors import DataError
from hasten.core.seeding import mix
from hasten.data.store.gather import is_list
from hasten.data.store.store import Store
from hasten.data.stream.batch import FORMS, Batch, Form, formed
from hasten.data.stream.batches import Batches, Position, Step, place
from hasten.data.stream.buffers import Buffers
from hasten.data.stream.lengths import Lengths
from hasten.data.stream.opened import Opened
from hasten.data.stream.order import Order, Part
from hasten.data.stream.samples import RowSamples
from hasten.data.stream.shares import Shares

_SALT = 4
_KEPT = 3


@dataclass(frozen=True)
class Piece:
    """Describe a part of a document within a row.

    Attributes:
        sample: Number of the document in the store.
        window: Window of the epoch that contains the document.
        start: Index of the first item.
        length: Number of items.
    """

    sample: int
    window: int
    start: int
    length: int


class PackedStream(Batches):
    """Read batches of rows packed with whole documents.

    A batch contains the column `[batch_size, length]`, padded at the end of each row; `positions`, the index of each item in
    its document, from 0; and `documents`, the number of the document within the row, from 1, with 0 for padding.

    Args:
        store: The store, or its path.
        column: Column of documents: lists of numbers, such as tokens.
        length: Length of a row.
        batch_size: Number of rows per batch on each rank.
        pad: Padding value.
        seed: Seed of the shuffle.
        shuffle: Shuffle the documents; if False, they keep the order of the store, except for packing within a pool.
        rank: Rank of this process among those that share each epoch; None uses torch.distributed's, or 0.
        world_size: Number of ranks; None uses torch.distributed's, or 1.
        form: Type of numeric columns: `arrow`, `numpy` or `torch`.
        pool: Number of documents packed together. Larger pools fill rows better and move documents further.
        workers: Number of threads that prepare batches ahead; 0 prepares each batch on request.
        read_ahead: Maximum number of batches that each thread prepares ahead.
        window_blocks: Number of blocks whose documents are mixed with each other.

    Raises:
        DataError: An argument is invalid, or there are fewer documents than ranks.
    """

    def __init__(
        self,
        store: Store | str | PathLike[str],
        *,
        column: str,
        length: int,
        batch_size: int,
        pad: int = 0,
        seed: int = 0,
        shuffle: bool = True,
        rank: int | None = None,
        world_size: int | None = None,
        form: Form = "torch",
        pool: int = 4096,
        workers: int = 0,
        read_ahead: int = 2,
        window_blocks: int = 16,
    ) -> None:
        self.store = store if isinstance(store, Store) else Store(store)
        for name, value in (
            ("length", length),
            ("batch_size", batch_size),
            ("pool", pool),
            ("window_blocks", window_blocks),
        ):
            if value < 1:
                raise DataError(f"{name} must be at least 1, not {value}.")
        if form not in FORMS:
            raise DataError(f"form must be one of {', '.join(FORMS)}, not {form!r}.")
        self._samples = RowSamples(self.store, [column], ())
        self._lengths = Lengths(self.store, column)
        if self.store.manifest.raw_column(column) is not None or not _is_list(self.store, column):
            raise DataError(f"column {column!r} cannot be packed: use a column of lists of numbers, such as tokens.")
        self._rank, self._world = place(rank, world_size)
        if len(self.store) < self._world:
            raise DataError(f"there are {len(self.store)} documents for {self._world} ranks: use fewer ranks or more data.")
        self._column, self._length, self._batch, self._pad = column, length, batch_size, pad
        self._seed, self._shuffle, self._pool_size, self._window_blocks = seed, shuffle, pool, window_blocks
        self._form = form
        self._buffers = Buffers(most=workers * read_ahead + 2)
        self._guard = threading.Lock()
        self._packs: OrderedDict[tuple[int, int], list[list[Piece]]] = OrderedDict()
        super().__init__(workers=workers, read_ahead=read_ahead)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in {"_guard", "_packs"}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _guard=threading.Lock(), _packs=OrderedDict())

    def _start(self) -> Position:
        return {"pool": 0, "row": 0}

    def _identity(self) -> dict[str, Any]:
        return {
            "seed": self._seed,
            "shuffle": self._shuffle,
            "window_blocks": self._window_blocks,
            "store_version": self.store.manifest.version,
            "num_samples": len(self.store),
            "column": self._column,
            "length": self._length,
            "pool": self._pool_size,
        }

    def _steps(self, epoch: int, position: Position) -> Iterator[Step]:
        order = self._order(epoch)
        num_pools = -(-order.num_samples // self._pool_size)
        pool, row = int(position["pool"]), int(position["row"])
        waiting: list[tuple[int, int]] = []  # rows not returned yet: pool and index in it
        last = pool
        full = self._batch * self._world
        while True:
            while len(waiting) < full + self._world and last < num_pools:
                rows = len(self._packed(order, epoch, last))
                waiting += [(last, number) for number in range(row if last == pool else 0, rows)]
                last += 1
            shares = Shares(num_samples=len(waiting), batch_size=self._batch, world_size=self._world, drop_last=False)
            _, end = shares.step(0)
            if not end:
                return
            share = shares.share(0, end, self._rank)
            task = waiting[slice(*share)]
            waiting = waiting[end:]
            following = waiting[0] if waiting else (last, 0)
            yield Step(task, {"pool": following[0], "row": following[1]})

    @contextmanager
    def _making(self, epoch: int) -> Iterator[Callable[[Any], Any]]:
        order = self._order(epoch)
        with closing(Opened(self._samples, order)) as opened:

            def make(task: list[tuple[int, int]]) -> Batch:
                with self._times.stage("gather"):
                    rows = [self._packed(order, epoch, pool)[number] for pool, number in task]
                    columns = self._filled(rows, opened)
                with self._times.stage("form"):
                    batch = Batch(formed(columns, self._form), len(rows))
                self._times.add(batches=1, samples=len(rows))
                return batch

            yield make

    def _order(self, epoch: int) -> Order:
        counts = self._samples.counts
        return Order(counts, seed=self._seed, epoch=epoch, shuffle=self._shuffle, window_blocks=self._window_blocks)

    def _packed(self, order: Order, epoch: int, pool: int) -> list[list[Piece]]:
        """Return the rows of a pool."""
        with self._guard:
            if (epoch, pool) in self._packs:
                self._packs.move_to_end((epoch, pool))
                return self._packs[epoch, pool]
        rows = packed_pool(order, self._lengths, pool, self._pool_size, self._length)
        if self._shuffle:
            random = np.random.Generator(np.random.Philox(mix(self._seed, epoch, _SALT, pool)))
            rows = [rows[number] for number in random.permutation(len(rows)).tolist()]
        with self._guard:
            self._packs[epoch, pool] = rows
            while len(self._packs) > _KEPT:
                self._packs.popitem(last=False)
        return rows

    def _filled(self, rows: list[list[Piece]], opened: Opened) -> dict[str, Any]:
        shape = (len(rows), self._length)
        kind = self.store.manifest.schema.field(self._column).type.value_type.to_pandas_dtype()
        values = self._buffers.empty(shape, np.dtype(kind))
        positions = self._buffers.empty(shape, np.dtype(np.int32))
        documents = self._buffers.empty(shape, np.dtype(np.int32))
        values[:], positions[:], documents[:] = self._pad, 0, 0
        texts = self._texts(rows, opened)
        for number, row in enumerate(rows):
            start = 0
            for document, piece in enumerate(row, 1):
                end = start + piece.length
                values[number, start:end] = texts[piece.sample][piece.start : piece.start + piece.length]
                positions[number, start:end] = np.arange(piece.start, piece.start + piece.length)
                documents[number, start:end] = document
                start = end
        return {self._column: values, "positions": positions, "documents": documents}

    def _texts(self, rows: list[list[Piece]], opened: Opened) -> dict[int, npt.NDArray[Any]]:
        """Return the items of each document of some rows."""
        windows: dict[int, dict[int, None]] = {}
        for row in rows:
            for piece in row:
                windows.setdefault(piece.window, {})[piece.sample] = None
        items_by_sample: dict[int, npt.NDArray[Any]] = {}
        for window, samples in windows.items():
            part = Part(window, np.array(list(samples), dtype=np.int64))
            array = opened.take([part], self._buffers)[self._column]
            offsets = array.offsets.to_numpy()
            items = array.values.to_numpy(zero_copy_only=False)
            items_by_sample.update((sample, items[offsets[n] : offsets[n + 1]]) for n, sample in enumerate(samples))
        return items_by_sample


def packed_pool(order: Order, lengths: Lengths, pool: int, pool_size: int, room: int) -> list[list[Piece]]:
    """Pack the documents of a pool: `pool_size` consecutive documents of an order.

    Args:
        order: Order of the documents.
        lengths: Lengths of the documents.
        pool: Number of the pool.
        pool_size: Number of documents in a pool.
        room: Capacity of a row.

    Returns:
        The pieces in each row. Pieces of a row, and rows by their first piece, are in the order of the documents.
    """
    parts = order.parts(pool * pool_size, min((pool + 1) * pool_size, order.num_samples))
    pieces = [
        piece
        for part in parts
        for sample, length in zip(part.samples.tolist(), lengths.of(part.samples).tolist(), strict=True)
        for piece in _pieces(sample, part.window, length, room)
    ]
    rows = sorted(map(sorted, best_fit([piece.length for piece in pieces], room)))
    return [[pieces[number] for number in row] for row in rows]


def best_fit(lengths: list[int], room: int) -> list[list[int]]:
    """Pack lengths into rows: longest first, each into the fullest row that has room for it.

    Args:
        lengths: Lengths, none above `room`.
        room: Capacity of a row.

    Returns:
        Indices of the lengths in each row.
    """
    rows: list[list[int]] = []
    free: list[tuple[int, int]] = []  # room left and row, sorted
    for number in sorted(range(len(lengths)), key=lambda n: -lengths[n]):
        index = bisect_left(free, (lengths[number], -1))
        if index == len(free):
            rows.append([number])
            left, row = room - lengths[number], len(rows) - 1
        else:
            left, row = free.pop(index)
            rows[row].append(number)
            left -= lengths[number]
        if left:
            insort(free, (left, row))
    return rows


def _pieces(sample: int, window: int, length: int, room: int) -> list[Piece]:
    """Split a document into pieces that fit a row. An empty document has none."""
    return [Piece(sample, window, start, min(room, length - start)) for start in range(0, length, room)]


def _is_list(store: Store, column: str) -> bool:
    kind = store.manifest.schema.field(column).type
    return bool(is_list(kind) and pa.types.is_primitive(kind.value_type))
