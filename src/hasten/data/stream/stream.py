"""Read batches of a store in an order that can be resumed anywhere, with any number of workers and ranks.

    stream = Stream(store, batch_size=256, seed=1)
    for epoch in range(3):
        for batch in stream:                  # one epoch; the next `for` loop is the next epoch
            train(batch["text"])
    state = stream.state_dict()               # a few integers, at any time

A whole batch is gathered from the mapped store at once. With `workers`, threads prepare batches in parallel: gathering,
decoding and large copies release the GIL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from os import PathLike
from typing import Any

from torch.utils.data import IterableDataset

from hasten.core.errors import DataError
from hasten.data.store.store import Store
from hasten.data.stream.batch import FORMS, Batch, Form, formed
from hasten.data.stream.batches import Batches, Position, Step, place
from hasten.data.stream.bucket import Buckets
from hasten.data.stream.buffers import Buffers
from hasten.data.stream.lengths import Lengths
from hasten.data.stream.opened import Opened
from hasten.data.stream.order import Order
from hasten.data.stream.samples import RowSamples, Samples, WindowSamples
from hasten.data.stream.shares import Shares


class Stream(Batches):
    """Read batches of a store. A stream is both a loader and a torch `IterableDataset` whose items are batches.

    Args:
        store: The store, or its path.
        batch_size: Number of samples per batch on each rank.
        seed: Seed of the shuffle.
        shuffle: Shuffle the samples; if False, they keep the order of the store.
        rank: Rank of this process among those that share each epoch; None uses torch.distributed's, or 0.
        world_size: Number of ranks; None uses torch.distributed's, or 1.
        columns: Columns to read; None reads all.
        form: Type of numeric columns: `arrow`, `numpy` or `torch`.
        strings: Text columns to return as lists of strings instead of Arrow arrays.
        views: Raw columns to return as a list of read-only views into the mapped store, without a copy. For a `transform`
            that reads each row once, such as one that downsizes images.
        drop_last: Omit samples that do not fill a batch on every rank.
        workers: Number of threads that prepare batches ahead; 0 prepares each batch on request.
        read_ahead: Maximum number of batches that each thread prepares ahead.
        window_blocks: Number of blocks whose samples are mixed with each other.
        length: Cut windows of this length from the single raw column in `columns`; None uses rows as samples.
        stride: Distance between the starts of two windows; None uses `length`.
        bucket_by: Group samples of similar length by this column of text, lists, or integer lengths; None mixes all lengths.
        transform: Function applied to each batch, in the thread that prepares it.

    Raises:
        DataError: An argument is invalid, or there are fewer samples than ranks.
    """

    def __init__(
        self,
        store: Store | str | PathLike[str],
        *,
        batch_size: int,
        seed: int = 0,
        shuffle: bool = True,
        rank: int | None = None,
        world_size: int | None = None,
        columns: Sequence[str] | None = None,
        form: Form = "arrow",
        strings: Sequence[str] = (),
        views: Sequence[str] = (),
        drop_last: bool = False,
        workers: int = 0,
        read_ahead: int = 2,
        window_blocks: int = 16,
        length: int | None = None,
        stride: int | None = None,
        bucket_by: str | None = None,
        transform: Callable[[Any], Any] | None = None,
    ) -> None:
        self.store = store if isinstance(store, Store) else Store(store)
        if batch_size < 1 or window_blocks < 1:
            raise DataError(f"batch_size and window_blocks must be at least 1, not {batch_size} and {window_blocks}.")
        if form not in FORMS:
            raise DataError(f"form must be one of {', '.join(FORMS)}, not {form!r}.")
        self._rank, world = place(rank, world_size)
        self._samples = _samples(self.store, columns, (strings, views), length, stride)
        count = int(self._samples.counts.sum())
        self._shares = Shares(num_samples=count, batch_size=batch_size, world_size=world, drop_last=drop_last)
        self._shares.check()
        self._seed, self._shuffle, self._window_blocks = seed, shuffle, window_blocks
        self._lengths = _lengths(self.store, bucket_by, length)
        self._form, self._transform = form, transform
        self._buffers = Buffers(most=workers * read_ahead + 2)
        super().__init__(workers=workers, read_ahead=read_ahead)

    def __len__(self) -> int:
        """Return the number of batches per epoch, which is the same on every rank."""
        return self._shares.num_steps()

    @property
    def num_samples(self) -> int:
        """Return the number of samples per epoch, over all ranks."""
        return self._shares.num_samples

    def samples(self) -> IterableDataset[dict[str, Any]]:
        """Return the same stream as single samples, for loaders that build batches themselves."""
        return _OneByOne(self)

    def _start(self) -> Position:
        # Buckets are based on the global batch at the start of the epoch, even if the number of ranks changes later.
        return {"sample": 0, **({"bucket": self._shares.full} if self._lengths is not None else {})}

    def _identity(self) -> dict[str, Any]:
        return {
            "seed": self._seed,
            "shuffle": self._shuffle,
            "window_blocks": self._window_blocks,
            "num_samples": self.num_samples,
            "store_version": self.store.manifest.version,
            "bucket_by": None if self._lengths is None else self._lengths.column,
        }

    def _steps(self, epoch: int, position: Position) -> Iterator[Step]:
        bucket = position.get("bucket", 0)
        for first, end in self._shares.steps(position["sample"]):
            yield Step((first, end, bucket), {**position, "sample": end})

    @contextmanager
    def _making(self, epoch: int) -> Iterator[Callable[[Any], Any]]:
        order = Order(
            self._samples.counts, seed=self._seed, epoch=epoch, shuffle=self._shuffle, window_blocks=self._window_blocks
        )
        buckets = Buckets(order, self._lengths, seed=self._seed, epoch=epoch) if self._lengths is not None else None
        with closing(Opened(self._samples, order)) as opened:

            def make(task: tuple[int, int, int]) -> Any:
                first, end, bucket = task
                start, stop = self._shares.share(first, end, self._rank)
                with self._times.stage("gather"):
                    parts = order.parts(start, stop) if buckets is None else buckets.parts(start, stop, bucket)
                    columns = opened.take(parts, self._buffers)
                with self._times.stage("form"):
                    batch: Any = Batch(formed(columns, self._form), stop - start)
                if self._transform is not None:
                    with self._times.stage("transform"):
                        batch = self._transform(batch)
                self._times.add(batches=1, samples=stop - start)
                return batch

            yield make


class _OneByOne(IterableDataset[dict[str, Any]]):
    """Iterate over the samples of a stream's batches."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self._rows(iter(self._stream))

    @staticmethod
    def _rows(batches: Iterator[Any]) -> Iterator[dict[str, Any]]:
        for batch in batches:
            for row in range(batch.num_rows):
                yield {name: _plain(values[row]) for name, values in batch.items()}

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch."""
        self._stream.set_epoch(epoch)


def _plain(value: Any) -> Any:
    """Convert a value of an Arrow array to a Python object; return other values unchanged."""
    return value.as_py() if hasattr(value, "as_py") else value


def _samples(
    store: Store,
    columns: Sequence[str] | None,
    special: tuple[Sequence[str], Sequence[str]],
    length: int | None,
    stride: int | None,
) -> Samples:
    if length is None:
        if stride is not None:
            raise DataError("stride applies to windows: set length too.")
        strings, views = special
        return RowSamples(store, columns, strings, views)
    names = store.columns if columns is None else tuple(columns)
    if len(names) != 1:
        raise DataError(
            f"windows need exactly one column (columns=['tokens']). The store's columns are {', '.join(store.columns)}."
        )
    return WindowSamples(store, names[0], length, length if stride is None else stride)


def _lengths(store: Store, column: str | None, length: int | None) -> Lengths | None:
    if column is None:
        return None
    if length is not None:
        raise DataError("bucket_by cannot be used with windows, which all have the same length.")
    return Lengths(store, column)
