"""Watch over what is kept of a script's samples: nobody promised that they come out the same each time.

At the start of each epoch a random part of what is kept is compared with fresh samples, large enough to find a change of 1 %
of the samples with a probability of 99.9 %, before any of it is given. Of the kept samples that are given then, at least as
many are compared. The first that differs, or for which a random number is drawn, ends caching for good; the script gets the
whole batch fresh, and the reason is told.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from hasten.core.errors import JobError
from hasten.core.seeding import RandomState, get_random_state, set_random_state
from hasten.optimizations.parts.sample_caching import MISSING
from hasten.script.data.equality import difference, moved_generator

FOUND_FRAC, MISSED_PROBABILITY = 0.01, 0.001
COMPARED_SAMPLES = math.ceil(math.log(MISSED_PROBABILITY) / math.log(1 - FOUND_FRAC))
"""Of so many random samples, all miss a change of `FOUND_FRAC` of them with `MISSED_PROBABILITY` at most."""
COMPARED_FRAC = 1 / 16
"""The share of samples that is compared at least, so that a change of all is found in the first batch of 16 or more."""


def compared_frac(num_samples: int) -> float:
    """The share of kept samples that is compared as they are given."""
    return min(max(COMPARED_FRAC, COMPARED_SAMPLES / max(num_samples, 1)), 1.0)


def epoch_compared_frac(num_samples: int) -> float:
    """Samples that are compared in an epoch, at its start and as they are given, as a share of all; above 1 for few."""
    return min(COMPARED_SAMPLES / max(num_samples, 1), 1.0) + compared_frac(num_samples)


class Trust:
    """That batches are what the script would get without us, until they are shown not to be.

    Args:
        on_lost: Told why, once, and whether others that differ may have been given before.

    Attributes:
        reason: Why not any more; empty as long as it is trusted.
    """

    def __init__(self, on_lost: Callable[[str, bool], None]) -> None:
        self.reason = ""
        self._on_lost = on_lost

    def lose(self, reason: str, *, given: bool) -> None:
        """Trust it no more.

        Args:
            reason: What differed.
            given: Whether others of this epoch, which were not compared, were given before.
        """
        if not self.reason:
            self.reason = reason
            self._on_lost(reason, given)

    def end(self) -> None:
        """The same without a word: the watching is over."""
        self.reason = self.reason or "the script goes on without us"


class Reads:
    """Reads samples as torch's fetcher does, and tells which were read.

    Args:
        dataset: The dataset.
        batched: Whether the loader makes batches of several samples; only then torch reads them in one call.
    """

    def __init__(self, dataset: Any, *, batched: bool = True) -> None:
        self.dataset, self._batched = dataset, batched
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
        return self._batched and bool(getattr(self.dataset, "__getitems__", None))

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
    """Takes samples through a load that keeps them, and compares some of them. Stands in the dataset's place at a fetcher.

    Args:
        load: Gives a sample, kept or read through `reads`.
        kept: Gives the kept copy of a sample, or `MISSING`.
        reads: Reads the dataset itself.
        trust: Lost at the first sample that differs.
        num_samples: Indices from 0 up to this are kept; others go to the dataset.
        load_many: As `load`, for several samples; None takes them one by one.
        copies: Hand out copies, where what takes them might change them in place.
    """

    def __init__(
        self,
        load: Callable[[int], Any],
        kept: Callable[[int], Any],
        reads: Reads,
        trust: Trust,
        *,
        num_samples: int,
        load_many: Callable[[Sequence[int]], list[Any]] | None = None,
        copies: bool = True,
    ) -> None:
        self._load, self._many, self._reads, self._trust = load, load_many, reads, trust
        self._kept, self._num, self._copies = kept, num_samples, copies
        self._rate = compared_frac(num_samples)
        self._given, self._owed = 0, 0.0
        self._random = random.Random(0)  # noqa: S311 - which samples are compared; the script's generators stay untouched

    def __getitem__(self, index: Any) -> Any:
        if self._trust.reason or not self._known(index):
            return self._reads.one(index)
        return self._taken([index], lambda: [self._reads.one(index)])[0]

    def __getitems__(self, indices: list[Any]) -> list[Any]:
        """Several samples, in order."""
        if self._trust.reason or not all(map(self._known, indices)):
            return self._reads.many(indices)
        return self._taken(indices, lambda: self._reads.many(indices))

    def begin_epoch(self) -> None:
        """Compare a random part of what is kept, before any of it is given."""
        self._given, compared = 0, 0
        if self._trust.reason:
            return
        before = get_random_state()
        for index in self._random.sample(range(self._num), self._num):
            if compared == COMPARED_SAMPLES:
                return
            sample = self._kept(index)
            if sample is MISSING:
                continue
            compared += 1
            if why := self._why_other(index, sample):
                set_random_state(before)
                self._trust.lose(why, given=False)
                return

    def spread_comparisons(self) -> None:
        """Compare more as the epoch goes on: a trial sees a part of one, and has to pay its share of those at the start."""
        self._rate = min(epoch_compared_frac(self._num), 1.0)

    def _known(self, index: Any) -> bool:
        return type(index) in (int, np.int64, np.int32) and 0 <= index < self._num

    def _taken(self, indices: Sequence[Any], fresh: Callable[[], list[Any]]) -> list[Any]:
        numbers, before = [int(index) for index in indices], get_random_state()
        try:
            found, why = self._try(numbers, before)
        except Exception as error:  # noqa: BLE001 - of ours: what is the dataset's own is raised below
            found, why = [], _words(error)
        if not why:
            return found
        set_random_state(before)
        samples = fresh()  # raises what is the dataset's own, as it would without us
        self._trust.lose(why, given=self._given > 0)
        return samples

    def _try(self, numbers: list[int], before: RandomState) -> tuple[list[Any], str]:
        """Samples, kept or read; and why they are not to be given, if so."""
        try:
            with self._reads.noting() as read:
                found = [self._load(number) for number in numbers] if self._many is None else self._many(numbers)
            found = copy.deepcopy(found) if self._copies else found
        except Exception as error:  # noqa: BLE001 - of ours or of the dataset: reading it again tells
            return [], _words(error)
        hits = [at for at, number in enumerate(numbers) if number not in read]
        why = next(filter(None, (self._why_other(numbers[at], found[at]) for at in self._chosen(hits))), "")
        moved = moved_generator(before, get_random_state())
        if not why and moved:
            why = f"reading a sample draws random numbers ({moved})"
        if not why:
            self._given += len(hits)
        return found, why

    def _chosen(self, hits: list[int]) -> list[int]:
        """Which of these are compared."""
        self._owed += len(hits) * self._rate
        count = min(int(self._owed), len(hits))
        self._owed -= count
        return self._random.sample(hits, count)

    def _why_other(self, index: int, kept: Any) -> str:
        """How a kept sample differs from what the dataset gives now; "" if it does not."""
        before = get_random_state()
        try:
            fresh = self._reads.many([index])[0]
        except Exception as error:  # noqa: BLE001 - of the script, whose loop meets it or does not
            return f"sample {index} cannot be read again: {type(error).__name__}: {error}"
        why = difference(kept, fresh, f"sample {index}")
        moved = moved_generator(before, get_random_state())
        return f"read again, {why}" if why else (f"reading sample {index} draws random numbers ({moved})" if moved else "")


def _words(error: Exception) -> str:
    """What a cache says of a sample, without its advice to those who write jobs; of other errors, what they say."""
    told = str(error)
    return told.partition(":")[0] if isinstance(error, JobError) else f"keeping failed: {type(error).__name__}: {told}"
