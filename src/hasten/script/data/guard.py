"""Watch over what is kept of a script's samples: nobody promised that they come out the same each time.

The first samples that come out of a cache are read anew as well, later one in many. The first that differs, or for which a
random number is drawn, ends caching and reading ahead for good; the script gets the fresh one, and the reason is told.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from hasten.core.errors import JobError
from hasten.core.seeding import get_random_state
from hasten.script.data.equality import difference, moved_generator

FIRST_CHECKED = 32
LATER_ONE_IN = 256


class Trust:
    """That a dataset is pure, until it is shown not to be.

    Args:
        on_lost: Told why, once.

    Attributes:
        reason: Why not any more; empty as long as it is trusted.
    """

    def __init__(self, on_lost: Callable[[str], None]) -> None:
        self.reason = ""
        self._on_lost = on_lost

    def lose(self, reason: str) -> None:
        """Trust it no more."""
        if not self.reason:
            self.reason = reason
            self._on_lost(reason)

    def end(self) -> None:
        """The same without a word: the watching is over."""
        self.reason = self.reason or "the script goes on without us"


class Turns:
    """Which of many to look at: the first few, then one in many."""

    def __init__(self, first: int, later_one_in: int) -> None:
        self._first, self._later = first, later_one_in
        self._passed = 0

    def due(self) -> bool:
        """Whether this one is looked at."""
        self._passed += 1
        return self._passed <= self._first or self._passed % self._later == 0

    def restart(self) -> None:
        """Look at the next few again."""
        self._passed = 0


class Reads:
    """Reads samples as torch's fetcher does, and tells which were read."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self._noted: set[Any] | None = None

    def one(self, index: Any) -> Any:
        """One sample."""
        self._note((index,))
        return self.dataset[index]

    def many(self, indices: Sequence[Any]) -> list[Any]:
        """Several, in one call where the dataset can."""
        self._note(indices)
        if self.in_one_call:
            return list(self.dataset.__getitems__(indices))
        return [self.dataset[index] for index in indices]

    @property
    def in_one_call(self) -> bool:
        """Whether the dataset reads several samples in one call; asked as torch asks."""
        return bool(getattr(self.dataset, "__getitems__", None))

    @contextmanager
    def noting(self) -> Iterator[set[Any]]:
        """Collect the indices that are read meanwhile."""
        self._noted = read = set[Any]()
        try:
            yield read
        finally:
            self._noted = None

    def _note(self, indices: Sequence[Any]) -> None:
        if self._noted is not None:
            self._noted.update(indices)


class PureLoad:
    """Takes samples through a load that keeps them, and looks at some of them. Stands in the dataset's place at a fetcher.

    Args:
        load: Gives a sample, kept or read through `reads`.
        reads: Reads the dataset itself.
        trust: Lost at the first sample that differs.
        num_samples: Indices from 0 up to this are kept; others go to the dataset.
        load_many: As `load`, for several samples; None takes them one by one.
        copies: Hand out copies, where what takes them might change them in place.
    """

    def __init__(
        self,
        load: Callable[[int], Any],
        reads: Reads,
        trust: Trust,
        *,
        num_samples: int,
        load_many: Callable[[Sequence[int]], list[Any]] | None = None,
        copies: bool = True,
    ) -> None:
        self._load, self._many, self._reads, self._trust = load, load_many, reads, trust
        self._num, self._copies = num_samples, copies
        self._turns = Turns(FIRST_CHECKED, LATER_ONE_IN)
        self._thread = threading.get_ident()

    def __getitem__(self, index: Any) -> Any:
        if self._trust.reason or not self._known(index):
            return self._reads.one(index)
        return self._taken([index])[0]

    def __getitems__(self, indices: list[Any]) -> list[Any]:
        """Several samples, in order."""
        if self._trust.reason or not all(map(self._known, indices)):
            return self._reads.many(indices)
        return self._taken(indices)

    def recheck(self) -> None:
        """Look closely again: the script may have changed its dataset."""
        self._turns.restart()

    def _known(self, index: Any) -> bool:
        return type(index) in (int, np.int64, np.int32) and 0 <= index < self._num

    def _taken(self, indices: Sequence[Any]) -> list[Any]:
        numbers = [int(index) for index in indices]
        found, read, error = self._try(numbers)
        if error is not None:
            fresh = self._reads.many(indices)  # raises what is the dataset's own, as it would without us
            self._trust.lose(_words(error))
            return fresh
        hits = [at for at, number in enumerate(numbers) if number not in read]
        if all(self._agrees(indices[at], found[at]) for at in hits):
            return found
        return [self._reads.one(index) if at in hits else found[at] for at, index in enumerate(indices)]

    def _try(self, numbers: list[int]) -> tuple[list[Any], set[Any], Exception | None]:
        try:
            with self._reads.noting() as read:
                found = [self._load(number) for number in numbers] if self._many is None else self._many(numbers)
            return (copy.deepcopy(found) if self._copies else found), read, None
        except Exception as error:  # noqa: BLE001 - of ours or of the dataset: reading it again tells
            return [], set(), error

    def _agrees(self, index: Any, kept: Any) -> bool:
        """Whether a kept sample is what the dataset gives now; most are believed."""
        if not self._turns.due():
            return True
        # A script may read its loader in a thread of its own, beside which the generators move for other reasons.
        before = get_random_state() if threading.get_ident() == self._thread else None
        fresh = self._reads.one(index)
        why = difference(kept, fresh, f"sample {index}")
        if why:
            why = f"read again, {why}"
        elif before is not None and (moved := moved_generator(before, get_random_state())):
            why = f"reading sample {index} draws random numbers ({moved})"
        if why:
            self._trust.lose(why)
        return not why


def _words(error: Exception) -> str:
    """What a cache says of a sample, without its advice to those who write jobs; of other errors, what they say."""
    told = str(error)
    return told.partition(":")[0] if isinstance(error, JobError) else f"keeping failed: {type(error).__name__}: {told}"
