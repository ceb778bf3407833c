"""The iterator for a script's loop if its samples are cached or its batches come from worker processes.

It behaves like PyTorch's iterator without workers: it takes each index from the sampler, and draws each random number, at
the same moment as without Hasten. A batch from a worker is used only if it was made for that very index. The first batch of
each epoch, and one sample in sixteen of the others, is compared with the same batch made in this process. If a worker fails
or a comparison shows a difference, the batch is made in this process instead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data._utils.fetch import _MapDatasetFetcher
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from hasten.core.batch import iter_tensors
from hasten.core.errors import HastenError
from hasten.core.live import LiveJob
from hasten.core.seeding import get_random_state, set_random_state
from hasten.script.data.equality import difference, moved_generator
from hasten.script.data.guard import COMPARED_FRAC, PureLoad, Trust
from hasten.script.data.lookahead import Lookahead
from hasten.script.data.workers import MISSED, Made, WorkerEpoch


@dataclass(kw_only=True)
class Sources:
    """Sources of an iterator's samples and batches.

    Attributes:
        live: Counts `pinned_batches`.
        trust: Once it is lost, caches and workers are no longer used.
        samples: Replaces the dataset in the fetcher; None leaves the dataset in place.
        predictable: Whether the batches can be computed ahead of the sampler.
        start_workers: Starts worker processes for an epoch with the seed that PyTorch would use; None for no workers.
        give_up: Called with the reason if no more batches are taken from workers.
        num_workers: Number of worker processes.
        comparable: Whether batches from workers can be compared. They cannot if random numbers make them differ.
    """

    live: LiveJob
    trust: Trust
    samples: PureLoad | None
    predictable: bool
    start_workers: Callable[[Lookahead, int], WorkerEpoch] | None
    give_up: Callable[[str], None]
    num_workers: int
    comparable: bool


class ScriptIterator(_SingleProcessDataLoaderIter):
    """An iterator over one epoch of a loader that has no workers of its own.

    Args:
        loader: The script's loader.
        sources: Sources of samples and batches.
    """

    def __init__(self, loader: DataLoader[Any], sources: Sources) -> None:
        self._sources, self._begun = sources, False
        self._lookahead: Lookahead | None = None
        self._workers: WorkerEpoch | None = None
        self._indices: list[Any] = []
        self._from_others, self._owed = 0, 0.0
        self._failure = ""
        super().__init__(loader)
        self._profile_name = f"enumerate(DataLoader)#{_SingleProcessDataLoaderIter.__name__}.__next__"
        self._plain = _MapDatasetFetcher(self._dataset, self._auto_collation, self._collate_fn, self._drop_last)
        if sources.samples is not None:
            self._dataset_fetcher.dataset = sources.samples
            self._dataset_fetcher = _Fetcher(self._dataset_fetcher, sources.samples)
        self._counts_pinned = self._pin_memory
        if sources.start_workers is not None:
            self._num_workers = sources.num_workers  # tells the profiler that the iterator waits for other processes

    def upcoming(self, count: int) -> list[Any]:
        """Return the indices that the sampler will give next and that no worker has received yet."""
        return [] if self._lookahead is None else self._lookahead.peek(count)

    def stop(self) -> None:
        """Take no more batches from workers. The loop may continue."""
        workers, self._workers = self._workers, None
        if workers is not None:
            try:
                workers.stop()
            except Exception as error:  # noqa: BLE001 - an error in Hasten: the workers end with this process
                self._sources.give_up(_reason(error))

    def __del__(self) -> None:
        if getattr(self, "_workers", None) is not None:
            self.stop()

    def _next_index(self) -> Any:
        return self._indices.pop() if self._indices else super()._next_index()  # type: ignore[no-untyped-call]  # torch has no types here

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
            batch = super()._next_data()  # type: ignore[no-untyped-call]  # as below; raises the script's own errors
            if self._failure:
                self._end_failed_workers()
        if self._counts_pinned:
            tensors = list(iter_tensors(batch))
            self._sources.live.count("pinned_batches", bool(tensors) and all(tensor.is_pinned() for tensor in tensors))
        return batch

    def _begin(self) -> None:
        """Start looking ahead, just before the first index is taken, which decides the order of the epoch."""
        self._begun = True
        sources = self._sources
        if threading.current_thread() is not threading.main_thread():  # the main thread may use generators at any time
            self._dataset_fetcher = self._plain
            return
        if sources.samples is not None:
            try:
                sources.samples.begin_epoch()
            except Exception as error:  # noqa: BLE001 - an error in Hasten: samples are read as usual
                sources.trust.lose(_reason(error), given=False)
        if not sources.predictable:
            return
        try:
            self._lookahead = Lookahead(self._index_sampler)
            if sources.start_workers is not None and not sources.trust.reason:
                self._workers = sources.start_workers(self._lookahead, int(self._base_seed))
        except Exception as error:  # noqa: BLE001 - an error in Hasten: the sampler itself is untouched
            sources.give_up(_reason(error))

    def _from_workers(self, index: Any) -> Any:
        """Return the batch that a worker made for `index`, or `MISSED` if it has to be made in this process."""
        before, self._failure = None, ""
        try:
            before = get_random_state()
            return self._taken(index)
        except Exception as error:  # noqa: BLE001 - of Hasten or of the script; making the batch in this process decides
            if before is not None:
                set_random_state(before)
            self._failure = _reason(error)
            return MISSED

    def _end_failed_workers(self) -> None:
        """Use no more batches from workers: they failed to make one that this process could make."""
        self.stop()
        self._sources.give_up(self._failure)

    def _taken(self, index: Any) -> Any:
        workers, sources = self._workers, self._sources
        if sources.start_workers is None:
            if self._lookahead is not None:
                next(self._lookahead, None)  # stay in step with the sampler
            return MISSED
        if workers is None or workers.stopped or sources.trust.reason:
            self.stop()
            return MISSED
        made = workers.take(index)
        if made is MISSED:
            raise HastenError("the sampler gave a different batch than expected")
        return self._checked(index, made)

    def _checked(self, index: Any, made: Made) -> Any:
        """Return a worker's batch. If a comparison shows a difference, stop using workers and return `MISSED`."""
        given, self._from_others = self._from_others, self._from_others + 1
        if not self._sources.comparable or not self._compares(index, made, first=not given):
            return made.batch
        before = get_random_state()
        why = self._why_other(index, made, whole=not given or made.witness is None)
        if not why:
            return made.batch
        set_random_state(before)
        self.stop()
        self._sources.trust.lose(why, given=given > 0)
        return MISSED

    def _compares(self, index: Any, made: Made, *, first: bool) -> bool:
        """Return whether this batch is compared: the first of an epoch, then `COMPARED_FRAC` of all samples."""
        if first:
            return True
        self._owed += COMPARED_FRAC * (1 if made.witness is None else len(index))
        due = self._owed >= 1.0
        self._owed = 0.0 if due else self._owed
        return due

    def _why_other(self, index: Any, made: Made, *, whole: bool) -> str:
        """Return how a batch differs from the one made in this process; "" if it does not."""
        before = get_random_state()
        try:
            fresh = self._plain.fetch(index if whole else [index[made.at]])
        except Exception as error:  # noqa: BLE001 - an error of the script; making the whole batch here may raise it
            return f"a prefetched batch cannot be made in this process: {_reason(error)}"
        why = difference(made.batch if whole else made.witness, fresh, "a prefetched batch")
        moved = moved_generator(before, get_random_state())
        return why or (f"making a batch draws random numbers ({moved})" if moved else "")


class _Fetcher:
    """Gathers batches from a cache if possible; otherwise the fetcher of the samples makes them."""

    def __init__(self, one_by_one: Any, samples: PureLoad) -> None:
        self._one_by_one, self._samples = one_by_one, samples

    def fetch(self, index: Any) -> Any:
        """Return the batch of an index."""
        batch = self._samples.batch(index)
        return self._one_by_one.fetch(index) if batch is None else batch


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, HastenError) else f"{type(error).__name__}: {error}"
