"""Mix several stores in one stream, by weights that can change during training.

Each global batch takes samples from each store according to its weight. Fractions are carried over to the next batch, so the
shares are exact over time, and only the order is random. A store that is exhausted starts its next epoch, in another order.
The state is a step and the number of samples taken from each store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from hasten.core.errors import DataError
from hasten.core.seeding import mix
from hasten.data.store.store import Store
from hasten.data.stream.batch import FORMS, Batch, Form, formed
from hasten.data.stream.batches import Batches, Position, Step, place
from hasten.data.stream.buffers import Buffers
from hasten.data.stream.opened import Opened, joined
from hasten.data.stream.order import Order
from hasten.data.stream.samples import RowSamples

Weights: TypeAlias = Sequence[float] | Callable[[int], Sequence[float]]
_SALT = 5


class MixedStream(Batches):
    """Read batches whose samples come from several stores.

    A batch contains the columns of the stores, and `source`: the index of each sample's store.

    Args:
        stores: The stores, or their paths. The requested columns must be the same in all.
        weights: Shares of the stores, 0 or more, or a function that returns them for a step, counted from 0 over all epochs.
        batch_size: Number of samples per batch on each rank.
        num_steps: Number of batches per epoch; None uses as many as all samples fill.
        seed: Seed of the shuffle.
        shuffle: Shuffle the samples of each store; if False, they keep the order of the store.
        rank: Rank of this process among those that share each epoch; None uses torch.distributed's, or 0.
        world_size: Number of ranks; None uses torch.distributed's, or 1.
        columns: Columns to read; None reads those of the first store.
        form: Type of numeric columns: `arrow`, `numpy` or `torch`.
        strings: Text columns to return as lists of strings instead of Arrow arrays.
        workers: Number of threads that prepare batches ahead; 0 prepares each batch on request.
        read_ahead: Maximum number of batches that each thread prepares ahead.
        window_blocks: Number of blocks whose samples are mixed with each other.

    Raises:
        DataError: An argument is invalid, or the columns of the stores differ.
    """

    def __init__(
        self,
        stores: Sequence[Store | str | PathLike[str]],
        *,
        weights: Weights,
        batch_size: int,
        num_steps: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        rank: int | None = None,
        world_size: int | None = None,
        columns: Sequence[str] | None = None,
        form: Form = "arrow",
        strings: Sequence[str] = (),
        workers: int = 0,
        read_ahead: int = 2,
        window_blocks: int = 16,
    ) -> None:
        self.stores = [store if isinstance(store, Store) else Store(store) for store in stores]
        if not self.stores or batch_size < 1 or window_blocks < 1:
            raise DataError("a mixed stream needs at least one store, and batch_size and window_blocks of at least 1.")
        if form not in FORMS:
            raise DataError(f"form must be one of {', '.join(FORMS)}, not {form!r}.")
        names = self.stores[0].checked_columns(columns)
        _check_alike(self.stores, names)
        self._samples = [RowSamples(store, names, strings) for store in self.stores]
        self._weights = weights
        _shares(weights, 0, len(self.stores))
        self._rank, world = place(rank, world_size)
        self._full = batch_size * world
        self._batch = batch_size
        self._num_steps = num_steps or max(1, sum(map(len, self.stores)) // self._full)
        self._seed, self._shuffle, self._window_blocks, self._form = seed, shuffle, window_blocks, form
        self._buffers = Buffers(most=(workers * read_ahead + 2) * len(self.stores))
        self._taken, self._credit = [0] * len(self.stores), [0.0] * len(self.stores)
        super().__init__(workers=workers, read_ahead=read_ahead)

    def __len__(self) -> int:
        """Return the number of batches per epoch."""
        return self._num_steps

    def _start(self) -> Position:
        # An epoch continues in each store where the last one ended.
        return {"step": 0, "taken": list(self._taken), "credit": list(self._credit)}

    def _following(self, position: Position) -> Position:
        self._taken, self._credit = list(position["taken"]), list(position["credit"])
        return self._start()

    def _identity(self) -> dict[str, Any]:
        return {
            "seed": self._seed,
            "shuffle": self._shuffle,
            "window_blocks": self._window_blocks,
            "num_steps": self._num_steps,
            "global_batch": self._full,
            "num_samples": [len(store) for store in self.stores],
            "store_version": [store.manifest.version for store in self.stores],
        }

    def _go_to(self, epoch: int) -> None:
        """Go to the start of an epoch, as if all epochs before it had been read."""
        self._taken, self._credit = [0] * len(self.stores), [0.0] * len(self.stores)
        taken, credit = self._taken, self._credit
        for step in range(epoch * self._num_steps):
            counts, credit = self._counts(step, credit)
            taken = [have + more for have, more in zip(taken, counts, strict=True)]
        self._taken, self._credit = taken, credit
        super()._go_to(epoch)

    def _steps(self, epoch: int, position: Position) -> Iterator[Step]:
        taken, credit = list(position["taken"]), list(position["credit"])
        for step in range(int(position["step"]), self._num_steps):
            counts, credit = self._counts(epoch * self._num_steps + step, credit)
            task = (epoch * self._num_steps + step, list(taken), counts)
            taken = [have + more for have, more in zip(taken, counts, strict=True)]
            yield Step(task, {"step": step + 1, "taken": list(taken), "credit": list(credit)})

    def _counts(self, step: int, credit: list[float]) -> tuple[list[int], list[float]]:
        """Return the number of samples from each store for a global batch, and the fractions carried over.

        Samples that remain after rounding down go to the stores with the largest fractions.
        """
        wanted = [
            have + share * self._full for have, share in zip(credit, _shares(self._weights, step, len(credit)), strict=True)
        ]
        counts = [max(0, int(np.floor(want + 1e-9))) for want in wanted]
        by_rest = sorted(range(len(counts)), key=lambda number: (counts[number] - wanted[number], number))
        for number in by_rest[: max(0, self._full - sum(counts))]:
            counts[number] += 1
        while sum(counts) > self._full:  # leftover credit of a store whose weight decreased
            counts[max(range(len(counts)), key=counts.__getitem__)] -= 1
        while sum(counts) < self._full:
            counts[max(range(len(counts)), key=wanted.__getitem__)] += 1
        return counts, [round(want - count, 9) for want, count in zip(wanted, counts, strict=True)]

    @contextmanager
    def _making(self, epoch: int) -> Iterator[Callable[[Any], Any]]:
        opened: dict[tuple[int, int], tuple[Order, Opened]] = {}

        def take(source: int, start: int, count: int) -> list[dict[str, Any]]:
            """Take samples of a store, from a position counted over all its epochs."""
            taken_parts = []
            while count:
                turn, index = divmod(start, len(self.stores[source]))
                available = min(count, len(self.stores[source]) - index)
                if (source, turn) not in opened:
                    order = Order(
                        self._samples[source].counts,
                        seed=mix(self._seed, source),
                        epoch=turn,
                        shuffle=self._shuffle,
                        window_blocks=self._window_blocks,
                    )
                    opened[source, turn] = (order, Opened(self._samples[source], order))
                order, window = opened[source, turn]
                taken_parts.append(window.take(order.parts(index, index + available), self._buffers))
                start, count = start + available, count - available
            return taken_parts

        def make(task: tuple[int, list[int], list[int]]) -> Batch:
            step, taken, counts = task
            with self._times.stage("gather"):
                parts = [p for n, count in enumerate(counts) for p in take(n, taken[n], count)]
                columns = {name: joined([part[name] for part in parts]) for name in parts[0]}
                columns["source"] = np.repeat(np.arange(len(counts), dtype=np.int16), counts)
                random = np.random.Generator(np.random.Philox(mix(self._seed, _SALT, step)))
                order = random.permutation(self._full)[self._rank * self._batch : (self._rank + 1) * self._batch]
                columns = {name: _picked(values, order) for name, values in columns.items()}
            with self._times.stage("form"):
                batch = Batch(formed(columns, self._form), self._batch)
            self._times.add(batches=1, samples=self._batch)
            return batch

        try:
            yield make
        finally:
            for _, window in opened.values():
                window.close()


def _shares(weights: Weights, step: int, count: int) -> list[float]:
    """Return the shares of the stores at a step, which sum to 1.

    Raises:
        DataError: There is not exactly one weight per store, or no weight is above 0.
    """
    given = [float(weight) for weight in (weights(step) if callable(weights) else weights)]
    if len(given) != count or min(given) < 0 or sum(given) <= 0 or not np.isfinite(given).all():
        raise DataError(
            f"weights must be one number per store, 0 or more and not all 0: got {given} for {count} stores at step {step}."
        )
    return [weight / sum(given) for weight in given]


def _check_alike(stores: Sequence[Store], names: Sequence[str]) -> None:
    """Check that the stores have the same columns."""
    if "source" in names:
        raise DataError("a mixed stream adds a column 'source': omit the stores' own column of that name (columns=...).")
    for store in stores[1:]:
        store.checked_columns(names)
        for name in names:
            kinds = [one.manifest.raw_column(name) or one.manifest.schema.field(name).type for one in (stores[0], store)]
            if kinds[0] != kinds[1]:
                raise DataError(
                    f"column {name!r} is {kinds[0]} in {stores[0].source.where} and {kinds[1]} in {store.source.where}."
                )


def _picked(values: Any, order: np.ndarray[Any, Any]) -> Any:
    if isinstance(values, pa.Array):
        return values.take(pa.array(order))
    if isinstance(values, np.ndarray):
        return values[order]
    return [values[number] for number in order.tolist()]
