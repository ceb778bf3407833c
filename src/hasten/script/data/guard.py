"""Check cached samples against fresh ones, because nothing guarantees that a script's samples stay the same.

At the start of each epoch, before any cached sample is used, a random selection of them is compared with fresh samples. It
is large enough to detect a change of 1 % of the samples with a probability of 99.9 %. During the epoch at least as many of
the cached samples in use are compared. At the first difference, or if a sample draws random numbers, caching is disabled
permanently, the script gets the whole batch fresh, and the reason is reported.
"""

from __future__ import annotations

import copy
import functools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np
from torch.utils.data import default_collate

from hasten.core.batch import map_tensors
from hasten.core.errors import JobError
from hasten.core.seeding import RandomState, get_random_state, set_random_state
from hasten.optimizations.parts.sample_caching import MISSING
from hasten.script.data.equality import difference, moved_generator

CHANGED_ONE_IN, MISSED_PROBABILITY = 100, 0.001
"""A change of one sample in this many must be detected, and the largest probability of missing it."""
MOST_COMPARED = math.ceil(math.log(MISSED_PROBABILITY) / math.log(1 - 1 / CHANGED_ONE_IN))
"""Number of random samples that is sufficient for this in a dataset of any size."""
COMPARED_FRAC = 1 / 16
"""Smallest share of samples that is compared. It detects a change of all samples in the first batch of 16 or more."""
AT_ONCE = 32
"""Number of samples that are collated to be compared at once, which bounds the memory for it."""


def compared_samples(num_samples: int) -> int:
    """Return how many random samples have to be compared. Of a small dataset it takes fewer, because none is drawn twice.

    If `changed` of all samples have changed, `n` different ones miss them all with a probability of at most
    `(1 - n / num_samples) ** changed` (hypergeometric distribution).
    """
    changed = max(math.ceil(num_samples / CHANGED_ONE_IN), 1)
    return min(math.ceil(num_samples * (1.0 - math.pow(MISSED_PROBABILITY, 1 / changed))), MOST_COMPARED)


def compared_frac(num_samples: int) -> float:
    """Return the share of cached samples that is compared when they are used."""
    return max(COMPARED_FRAC, compared_samples(num_samples) / max(num_samples, 1))


def epoch_compared_frac(num_samples: int) -> float:
    """Return the number of comparisons of an epoch, at its start and during it, as a share of all samples. May exceed 1."""
    return compared_samples(num_samples) / max(num_samples, 1) + compared_frac(num_samples)


class Trust:
    """Whether batches are taken to be those of the unchanged script. Lost at the first difference.

    Args:
        on_lost: Called once, with the reason and whether the script may have received differing samples before.

    Attributes:
        reason: Why trust was lost; "" while it holds.
    """

    def __init__(self, on_lost: Callable[[str, bool], None]) -> None:
        self.reason = ""
        self._on_lost = on_lost

    def lose(self, reason: str, *, given: bool) -> None:
        """Lose trust.

        Args:
            reason: What differed.
            given: Whether the script received samples of this epoch that were not compared.
        """
        if not self.reason:
            self.reason = reason
            self._on_lost(reason, given)

    def end(self) -> None:
        """Stop checking, without reporting a reason."""
        self.reason = self.reason or "the script continues without Hasten"


class Reads:
    """Reads samples as torch's fetcher does, and can record the indices.

    Args:
        dataset: The dataset.
        batched: Whether the loader makes batches of several samples. Only then torch reads them in one call.
    """

    def __init__(self, dataset: Any, *, batched: bool = True) -> None:
        self.dataset, self._batched = dataset, batched
        self._noted: set[Any] | None = None

    def one(self, index: Any) -> Any:
        """Read one sample."""
        self._note((index,))
        return self.dataset[index]

    def many(self, indices: Sequence[Any]) -> list[Any]:
        """Read several samples, in one call if the dataset supports it."""
        self._note(indices)
        return self.unnoted(indices)

    def unnoted(self, indices: Sequence[Any]) -> list[Any]:
        """Read several samples as torch does, without recording them."""
        if self.in_one_call:
            return list(self.dataset.__getitems__(indices))
        return [self.dataset[index] for index in indices]

    @property
    def in_one_call(self) -> bool:
        """Whether the dataset reads several samples in one call, by the same test as torch."""
        return self._batched and bool(getattr(self.dataset, "__getitems__", None))

    @contextmanager
    def noting(self) -> Iterator[set[Any]]:
        """Record the indices that are read inside the `with` block."""
        self._noted = read = set[Any]()
        try:
            yield read
        finally:
            self._noted = None

    def _note(self, indices: Sequence[Any]) -> None:
        if self._noted is not None:
            self._noted.update(indices)


class PureLoad:
    """Gets samples from a cache and compares some of them with fresh ones. Replaces the dataset in a fetcher.

    Args:
        load: Returns a sample, from the cache or read through `reads`.
        kept: Returns the cached copy of a sample, or `MISSING`.
        reads: Reads the dataset itself.
        trust: Lost at the first sample that differs.
        num_samples: Indices from 0 up to this number are cached; others are read from the dataset.
        load_many: Like `load`, for several samples; None loads them one by one.
        kept_batch: Returns the batch of these samples as PyTorch's default collate function would make it, or None if not
            all are cached; None if no cache makes batches.
        copies: Return copies, because the consumer may modify samples in place.
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
        kept_batch: Callable[[Sequence[int]], Any] | None = None,
        copies: bool = True,
    ) -> None:
        self._load, self._many, self._reads, self._trust = load, load_many, reads, trust
        self._kept, self._num, self._copies = kept, num_samples, copies
        self._kept_batch = kept_batch
        self._rate = compared_frac(num_samples)
        self._given, self._owed, self._start_compared = 0, 0.0, False
        self._random = random.Random(0)  # noqa: S311 - selects samples to compare; the script's generators stay untouched

    def __getitem__(self, index: Any) -> Any:
        return self._get([index], lambda: [self._reads.dataset[index]])[0]

    def __getitems__(self, indices: list[Any]) -> list[Any]:
        """Return several samples, in order."""
        return self._get(indices, lambda: self._reads.unnoted(indices))

    def batch(self, indices: Any) -> Any:
        """Return the batch of samples that are all cached, gathered at once; None if it has to be made from samples."""
        if self._kept_batch is None or self._trust.reason:
            return None
        before = None
        try:
            before = get_random_state()
            batch, why = self._gather(indices, before)
        except Exception as error:  # noqa: BLE001 - an error in Hasten
            batch, why = None, _words(error)
        if why:
            if before is not None:
                set_random_state(before)
            self._trust.lose(why, given=self._given > 0)
        return batch

    def _gather(self, indices: Any, before: RandomState) -> tuple[Any, str]:
        """Return a batch or None, and the reason why the cache must not be used any more; "" if it may."""
        if self._kept_batch is None or type(indices) is not list or not all(map(self._known, indices)):
            return None, ""
        numbers = [int(index) for index in indices]
        batch = self._kept_batch(numbers)
        if batch is None:
            return None, ""
        places = self._chosen(list(range(len(numbers))))
        chosen = [numbers[place] for place in places]
        why = self._why_collated(chosen, lambda: map_tensors(batch, lambda column: column[places]), before) if places else ""
        if why:
            return None, why
        self._given += len(numbers)
        return batch, ""

    def _get(self, indices: Sequence[Any], fresh: Callable[[], list[Any]]) -> list[Any]:
        samples, why = self._from_cache(indices)
        if samples is None:
            samples = fresh()  # raises the dataset's own errors, as without Hasten
            if why:
                self._trust.lose(why, given=self._given > 0)
        return samples

    def begin_epoch(self) -> None:
        """Compare a random selection of cached samples before any of them is used."""
        self._given, self._rate = 0, compared_frac(self._num)
        if self._trust.reason:
            return
        before, enough = get_random_state(), compared_samples(self._num)
        cached = (index for index in self._random.sample(range(self._num), self._num) if self._kept(index) is not MISSING)
        chosen = list(islice(cached, enough))
        self._start_compared = len(chosen) == enough
        if self._kept_batch is None:
            why = self._why_others(chosen)
        else:
            groups = (chosen[start : start + AT_ONCE] for start in range(0, len(chosen), AT_ONCE))
            whys = (self._why_collated(some, functools.partial(self._collated, some), before) for some in groups)
            why = next(filter(None, whys), "")
        if why:
            set_random_state(before)
            self._trust.lose(why, given=False)

    def spread_comparisons(self) -> None:
        """Raise the comparison rate for the rest of an epoch, so that a trial bears its share of a start it did not see.

        Unchanged if this epoch has begun with all comparisons, as it does in trials that are longer than an epoch.
        """
        if not self._start_compared:
            self._rate = min(epoch_compared_frac(self._num), 1.0)

    def _from_cache(self, indices: Sequence[Any]) -> tuple[list[Any] | None, str]:
        """Return samples, or None and the reason why the cache must not be used any more; "" if it may be used again."""
        before = None
        try:
            if self._trust.reason or not all(map(self._known, indices)):
                return None, ""
            before = get_random_state()
            samples, why = self._try([int(index) for index in indices], before)
        except Exception as error:  # noqa: BLE001 - an error in Hasten
            samples, why = [], _words(error)
        if not why:
            return samples, ""
        if before is not None:
            set_random_state(before)
        return None, why

    def _known(self, index: Any) -> bool:
        return type(index) in (int, np.int64, np.int32) and 0 <= index < self._num

    def _try(self, numbers: list[int], before: RandomState) -> tuple[list[Any], str]:
        """Return samples, cached or read, and the reason why they must not be used; "" if they may."""
        try:
            with self._reads.noting() as read:
                samples = [self._load(number) for number in numbers] if self._many is None else self._many(numbers)
            samples = copy.deepcopy(samples) if self._copies else samples
        except Exception as error:  # noqa: BLE001 - of Hasten or of the dataset; reading again decides
            return [], _words(error)
        hits = [place for place, number in enumerate(numbers) if number not in read]
        chosen = self._chosen(hits)
        why = self._why_others((numbers[place] for place in chosen), {numbers[place]: samples[place] for place in chosen})
        moved = moved_generator(before, get_random_state())
        if not why and moved:
            why = f"reading a sample draws random numbers ({moved})"
        if not why:
            self._given += len(hits)
        return samples, why

    def _chosen(self, hits: list[int]) -> list[int]:
        """Select the samples to compare."""
        self._owed += len(hits) * self._rate
        count = min(int(self._owed), len(hits))
        self._owed -= count
        return self._random.sample(hits, count)

    def _collated(self, indices: list[int]) -> Any:
        return default_collate([self._kept(index) for index in indices])

    def _why_collated(self, indices: list[int], kept: Callable[[], Any], before: RandomState) -> str:
        """Like `_why_others`, for samples that a cache makes batches of, which are compared as a batch.

        Args:
            indices: Samples to compare.
            kept: Returns the batch of cached samples.
            before: Random state before the comparison.
        """
        try:
            differs = bool(difference(kept(), default_collate(self._reads.many(indices))))
        except Exception:  # noqa: BLE001 - of the dataset, or of samples that do not fit together: one by one decides
            differs = True
        if differs:
            return self._why_others(indices) or "a batch of cached samples differs from one of fresh samples"
        moved = moved_generator(before, get_random_state())
        return f"reading a sample draws random numbers ({moved})" if moved else ""

    def _why_others(self, indices: Iterable[int], given: Mapping[int, Any] | None = None) -> str:
        """Return how cached samples differ from fresh ones; "" if they do not.

        Args:
            indices: Samples to compare.
            given: Copies of them that were taken from the cache; None takes them now.
        """
        before = get_random_state()
        for index in indices:
            kept = self._kept(index) if given is None else given[index]
            try:
                fresh = self._reads.many([index])[0]
            except Exception as error:  # noqa: BLE001 - an error of the script, which its own loop may or may not meet
                return f"sample {index} cannot be read again: {type(error).__name__}: {error}"
            if why := difference(kept, fresh, f"sample {index}"):
                return f"when read again, {why}"
        moved = moved_generator(before, get_random_state())
        return f"reading a sample draws random numbers ({moved})" if moved else ""


def _words(error: Exception) -> str:
    """Return a cache's message about a sample without its advice for authors of jobs. Describe other errors in full."""
    message = str(error)
    return message.partition(":")[0] if isinstance(error, JobError) else f"caching failed: {type(error).__name__}: {message}"
