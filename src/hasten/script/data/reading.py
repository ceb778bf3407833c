"""The iterator that a script's loop reads from, where its batches are kept or made ahead.

It is torch's own iterator without workers: the sampler gives each index, and each random number is drawn, at the moment when
it would be without us. A batch that was made ahead is handed out only if it was made of that very index; some are held
against the same batch made here. Whatever goes wrong ahead, the batch is made here, as torch makes it.
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
from hasten.script.data.ahead import MISSED, Ahead
from hasten.script.data.alike import difference, moved_generator
from hasten.script.data.foresee import Foreseen
from hasten.script.data.guard import Trust, Turns


@dataclass(kw_only=True)
class Means:
    """What an iterator reads with.

    Attributes:
        live: Counts `pinned_batches`.
        trust: Nothing is kept or made ahead once it is lost.
        served: Stands for the dataset at the fetcher; None leaves the dataset there.
        foreseen: What the sampler is going to give; None where nobody needs to know.
        begin: Starts to make batches ahead, given the seed that torch would hand to workers; None where none are.
        give_up: Told why no batch is to be made ahead any more.
        num_workers: Who makes them: threads or processes.
        turns: Which of the batches that were made ahead are looked at; None where random numbers make them differ.
    """

    live: LiveJob
    trust: Trust
    served: Any | None
    foreseen: Foreseen | None
    begin: Callable[[Foreseen, int], Ahead] | None
    give_up: Callable[[str], None]
    num_workers: int
    turns: Turns | None


class Reading(_SingleProcessDataLoaderIter):
    """An iterator over one epoch of a loader that has no workers of its own.

    Args:
        loader: The script's loader.
        means: What it is read with.
    """

    def __init__(self, loader: DataLoader[Any], means: Means) -> None:
        self._means, self._begun = means, False
        self._ahead: Ahead | None = None
        self._given: list[Any] = []
        super().__init__(loader)
        self._profile_name = f"enumerate(DataLoader)#{_SingleProcessDataLoaderIter.__name__}.__next__"
        self._plain = _MapDatasetFetcher(self._dataset, self._auto_collation, self._collate_fn, self._drop_last)
        if means.served is not None:
            self._dataset_fetcher.dataset = means.served
        self._counts_pinned = self._pin_memory
        if means.begin is not None:
            self._num_workers = means.num_workers  # it waits for others, whoever measures that

    def upcoming(self, count: int) -> list[Any]:
        """What the sampler is foreseen to give next, as far as it is not under way yet."""
        foreseen = self._means.foreseen
        return [] if foreseen is None or not self._begun else foreseen.peek(count)

    def stop(self) -> None:
        """Make no more batches ahead; the loop may go on."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.stop()

    def __del__(self) -> None:
        if getattr(self, "_ahead", None) is not None:
            self.stop()

    def _next_index(self) -> Any:
        return self._given.pop() if self._given else super()._next_index()  # type: ignore[no-untyped-call]  # torch says nothing of its types

    def _next_data(self) -> Any:
        if not self._begun:
            self._begin()
        try:
            index = self._next_index()
        except StopIteration:
            self.stop()
            raise
        batch = self._from_ahead(index)
        if batch is MISSED:
            self._given.append(index)
            batch = super()._next_data()  # type: ignore[no-untyped-call]  # as above
        if self._counts_pinned:
            tensors = list(iter_tensors(batch))
            self._means.live.count("pinned_batches", bool(tensors) and all(tensor.is_pinned() for tensor in tensors))
        return batch

    def _begin(self) -> None:
        """Before the first index is taken: from here the sampler's whole order is decided."""
        self._begun = True
        means = self._means
        if means.foreseen is None:
            return
        try:
            means.foreseen.begin()
            means.foreseen.peek(1)
            if means.begin is not None and not means.trust.reason:
                self._ahead = means.begin(means.foreseen, int(self._base_seed))
        except Exception as error:  # noqa: BLE001 - of ours, or of the sampler's copy: the sampler itself is untouched
            means.foreseen = None
            means.give_up(_words(error))

    def _from_ahead(self, index: Any) -> Any:
        """The batch that was made ahead for `index`, looked at; `MISSED` where it is to be made here."""
        ahead, means = self._ahead, self._means
        if means.begin is None:
            self._keep_in_step()
            return MISSED
        if ahead is None or ahead.stopped or means.trust.reason:
            self.stop()
            return MISSED
        batch, error = _taken(ahead, index)
        if error is not None:
            return self._made_here(index, error)
        if batch is MISSED:
            self.stop()
            means.give_up("its sampler gave another batch than was foreseen")
            return MISSED
        return self._looked_at(index, batch)

    def _keep_in_step(self) -> None:
        """What is foreseen stays what comes next, also where no batch is made of it."""
        try:
            if self._means.foreseen is not None:
                next(self._means.foreseen, None)
        except Exception as error:  # noqa: BLE001 - of the sampler's copy
            self._means.foreseen = None
            self._means.give_up(_words(error))

    def _made_here(self, index: Any, error: Exception) -> Any:
        """Make the batch that failed elsewhere: what is wrong with it is raised as it would be without us."""
        self._given.append(index)
        batch = super()._next_data()  # type: ignore[no-untyped-call]  # as above
        self.stop()
        self._means.give_up(_words(error))
        return batch

    def _looked_at(self, index: Any, batch: Any) -> Any:
        """A batch that was made ahead, or in its place the one made here if they differ."""
        turns = self._means.turns
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
        self._means.trust.lose(why)
        return pin_memory(fresh, self._pin_memory_device) if self._pin_memory else fresh


def _taken(ahead: Ahead, index: Any) -> tuple[Any, Exception | None]:
    """A batch, or what making it has raised: of ours or of the script's, making it anew tells which."""
    try:
        return ahead.take(index), None
    except Exception as error:  # noqa: BLE001 - see above
        return MISSED, error


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, HastenError) else f"{type(error).__name__}: {error}"
