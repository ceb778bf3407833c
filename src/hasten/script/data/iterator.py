"""The iterator that a script's loop reads from when its samples are cached or its batches come from worker processes.

It is PyTorch's own iterator without workers: the sampler gives each index, and each random number is drawn, at the same
moment as without Hasten. A batch from a worker is returned only if it was made for that very index, and some are compared
with the same batch made here. If anything goes wrong in a worker, the batch is made here instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data._utils.fetch import _MapDatasetFetcher
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from hasten.core.batch import iter_tensors
from hasten.core.errors import HastenError
from hasten.core.live import LiveJob
from hasten.core.seeding import get_random_state
from hasten.script.data.equality import difference, moved_generator
from hasten.script.data.guard import Trust, Turns
from hasten.script.data.lookahead import Lookahead
from hasten.script.data.workers import MISSED, WorkerEpoch


@dataclass(kw_only=True)
class Sources:
    """Where an iterator gets its samples and batches from.

    Attributes:
        live: Counts `pinned_batches`.
        trust: Caches and workers are left alone once it is lost.
        samples: Replaces the dataset at the fetcher; None leaves the dataset in place.
        predictable: Whether the batches can be computed ahead of the sampler.
        start_workers: Starts worker processes for an epoch, given the seed that PyTorch would give them; None has none.
        give_up: Called with the reason if no more batches are to come from workers.
        num_workers: Worker processes.
        turns: Decides which batches from workers are compared; None if random numbers make them differ.
    """

    live: LiveJob
    trust: Trust
    samples: Any | None
    predictable: bool
    start_workers: Callable[[Lookahead, int], WorkerEpoch] | None
    give_up: Callable[[str], None]
    num_workers: int
    turns: Turns | None


class ScriptIterator(_SingleProcessDataLoaderIter):
    """An iterator over one epoch of a loader that has no workers of its own.

    Args:
        loader: The script's loader.
        sources: Where samples and batches come from.
    """

    def __init__(self, loader: DataLoader[Any], sources: Sources) -> None:
        self._sources, self._begun = sources, False
        self._lookahead: Lookahead | None = None
        self._workers: WorkerEpoch | None = None
        self._indices: list[Any] = []
        super().__init__(loader)
        self._profile_name = f"enumerate(DataLoader)#{_SingleProcessDataLoaderIter.__name__}.__next__"
        self._plain = _MapDatasetFetcher(self._dataset, self._auto_collation, self._collate_fn, self._drop_last)
        if sources.samples is not None:
            self._dataset_fetcher.dataset = sources.samples
        self._counts_pinned = self._pin_memory
        if sources.start_workers is not None:
            self._num_workers = sources.num_workers  # tells a profiler that it waits for other processes

    def upcoming(self, count: int) -> list[Any]:
        """The indices that the sampler will give next and that no worker has been given yet."""
        return [] if self._lookahead is None else self._lookahead.peek(count)

    def stop(self) -> None:
        """Take no more batches from workers; the loop may go on."""
        workers, self._workers = self._workers, None
        if workers is not None:
            workers.stop()

    def __del__(self) -> None:
        if getattr(self, "_workers", None) is not None:
            self.stop()

    def _next_index(self) -> Any:
        return self._indices.pop() if self._indices else super()._next_index()  # type: ignore[no-untyped-call]  # torch says nothing of its types

    def _next_data(self) -> Any:
        if not self._begun:
            self._begin()
        try:
            index = self._next_index()
        except StopIteration:
            self.stop()
            raise
        batch = self._from_workers(index)
        if batch is MISSED:
            self._indices.append(index)
            batch = super()._next_data()  # type: ignore[no-untyped-call]  # as above
        if self._counts_pinned:
            tensors = list(iter_tensors(batch))
            self._sources.live.count("pinned_batches", bool(tensors) and all(tensor.is_pinned() for tensor in tensors))
        return batch

    def _begin(self) -> None:
        """Look ahead from here: just before the first index is taken, which decides the order of the epoch."""
        self._begun = True
        sources = self._sources
        if not sources.predictable:
            return
        try:
            self._lookahead = Lookahead(self._index_sampler)
            if sources.start_workers is not None and not sources.trust.reason:
                self._workers = sources.start_workers(self._lookahead, int(self._base_seed))
        except Exception as error:  # noqa: BLE001 - of ours: the sampler itself is untouched
            sources.give_up(_reason(error))

    def _from_workers(self, index: Any) -> Any:
        """The batch that a worker made for `index`; `MISSED` if it has to be made here."""
        workers, sources = self._workers, self._sources
        if sources.start_workers is None:
            if self._lookahead is not None:
                next(self._lookahead, None)  # it stays in step with the sampler
            return MISSED
        if workers is None or workers.stopped or sources.trust.reason:
            self.stop()
            return MISSED
        failure: Exception | None = None
        try:
            batch = workers.take(index)
        except Exception as error:  # noqa: BLE001 - of ours or of the script: making the batch here tells which
            failure = error
        if failure is not None:  # outside the handler: the script's own error must not carry this one as its context
            return self._made_here(index, failure)
        if batch is MISSED:
            self.stop()
            sources.give_up("its sampler gave another batch than expected")
            return MISSED
        return self._checked(index, batch)

    def _made_here(self, index: Any, error: Exception) -> Any:
        """Make the batch that failed in a worker: an error of the script is raised as it would be without workers."""
        self._indices.append(index)
        batch = super()._next_data()  # type: ignore[no-untyped-call]  # as above
        self.stop()
        self._sources.give_up(_reason(error))
        return batch

    def _checked(self, index: Any, batch: Any) -> Any:
        """The batch of a worker, or in its place the one made here if they differ."""
        turns = self._sources.turns
        if turns is None or not turns.due():
            return batch
        before = get_random_state()
        fresh = self._plain.fetch(index)
        why = difference(batch, fresh, "a batch made ahead")
        moved = moved_generator(before, get_random_state())
        if not why and moved:
            why = f"making a batch draws random numbers ({moved})"
        if not why:
            return batch
        self.stop()
        self._sources.trust.lose(why)
        return pin_memory(fresh, self._pin_memory_device) if self._pin_memory else fresh


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, HastenError) else f"{type(error).__name__}: {error}"
