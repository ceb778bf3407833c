"""Cached samples that change are detected, and the script gets fresh ones."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from hasten.core.seeding import get_random_state
from hasten.optimizations.parts.sample_caching import MISSING
from hasten.optimizations.parts.stacked_samples import StackedSamples
from hasten.script.data.equality import moved_generator
from hasten.script.data.guard import (
    CHANGED_ONE_IN,
    COMPARED_FRAC,
    MISSED_PROBABILITY,
    MOST_COMPARED,
    PureLoad,
    Reads,
    Trust,
    compared_samples,
)

NUM = 10


class Rows(Dataset[Any]):
    def __init__(self, num: int = NUM) -> None:
        self.num, self.visits = num, 0
        self.noise, self.noisy = 0.0, range(num)
        self.drawn = 0
        self.fails = False

    def __len__(self) -> int:
        return self.num

    def __getitem__(self, index: Any) -> Any:
        self.visits += 1
        if self.fails:
            raise KeyError(index)
        if self.drawn:
            np.random.rand()  # noqa: NPY002
        return [torch.full((3,), float(index if isinstance(index, int) else -1)) + self.noise * (index in self.noisy)]


class ManyRows(Rows):
    calls = 0

    def __getitems__(self, indices: list[int]) -> list[Any]:
        self.calls += 1
        return [self[index] for index in indices]


class Kept:
    """A cache that keeps all samples."""

    def __init__(self, reads: Reads) -> None:
        self.reads = reads
        self.samples: dict[int, Any] = {}

    def one(self, index: int) -> Any:
        return self.many([index])[0]

    def many(self, indices: Any) -> list[Any]:
        missing = [index for index in indices if index not in self.samples]
        self.samples.update(zip(missing, self.reads.many(missing), strict=True))
        return [self.samples[index] for index in indices]


class Guarded:
    def __init__(self, dataset: Rows, *, copies: bool = True, many: bool = False) -> None:
        self.dataset = dataset
        self.lost: list[tuple[str, bool]] = []
        reads = Reads(dataset)
        self.kept = Kept(reads)
        self.trust = Trust(lambda reason, given: self.lost.append((reason, given)))
        self.load = PureLoad(
            self.kept.one,
            lambda index: self.kept.samples.get(index, MISSING),
            reads,
            self.trust,
            num_samples=len(dataset),
            load_many=self.kept.many if many else None,
            copies=copies,
        )

    def epoch(self, batch: int = 1) -> list[Any]:
        self.load.begin_epoch()
        num = len(self.dataset)
        return [
            sample for at in range(0, num, batch) for sample in self.load.__getitems__([*range(at, min(at + batch, num))])
        ]


def value(sample: Any) -> float:
    return float(sample[0][0])


def test_as_many_are_compared_as_find_a_change_of_one_percent() -> None:
    same = 1 - 1 / CHANGED_ONE_IN
    assert same**MOST_COMPARED <= MISSED_PROBABILITY < same ** (MOST_COMPARED - 1)
    assert MOST_COMPARED == 688


@pytest.mark.parametrize("num", [1, 5, 99, 100, 101, 250, 1797, 5000, 12000, 10**6])
def test_of_a_small_dataset_fewer_are_compared(num: int) -> None:
    compared, changed = compared_samples(num), -(-num // CHANGED_ONE_IN)
    assert 0 < compared <= min(num, MOST_COMPARED)
    assert Fraction(math.comb(num - changed, compared), math.comb(num, compared)) <= MISSED_PROBABILITY
    if 1000 < num < 10000:
        assert compared < MOST_COMPARED


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("num", [100, 1500, 12000])
def test_every_epoch_begins_with_comparisons_and_goes_on_with_as_many(num: int, many: bool) -> None:
    guarded = Guarded((ManyRows if many else Rows)(num), many=many, copies=False)
    assert len(guarded.epoch(32)) == guarded.dataset.visits == num  # nothing is cached yet
    for _ in range(2 if num < 10000 else 1):
        before = guarded.dataset.visits
        guarded.load.begin_epoch()
        first = guarded.dataset.visits - before
        assert first == compared_samples(num)
        assert [value(sample) for sample in guarded.load.__getitems__(list(range(num)))] == list(range(num))
        later = guarded.dataset.visits - before - first
        assert compared_samples(num) <= later + 1
        assert abs(later - max(compared_samples(num), COMPARED_FRAC * num)) <= 1
    assert guarded.lost == []


def test_a_change_of_one_percent_is_found_before_anything_is_given() -> None:
    found = 0
    for seed in range(6):
        guarded = Guarded(Rows(1500), copies=False)
        guarded.load._random.seed(seed)
        guarded.epoch(100)
        guarded.dataset.noise, guarded.dataset.noisy = 0.5, range(seed, 1500, 100)
        guarded.load.begin_epoch()
        found += [given for _, given in guarded.lost] == [False]
    assert found == 6


@pytest.mark.parametrize("batch", [16, 32])
def test_a_change_of_all_within_an_epoch_reaches_every_batch(batch: int) -> None:
    guarded = Guarded(Rows(12000), copies=False)
    guarded.epoch(batch)
    guarded.load.begin_epoch()
    guarded.load.__getitems__(list(range(batch)))
    guarded.dataset.noise = 0.5
    assert all(value(sample) % 1 == 0.5 for sample in guarded.load.__getitems__(list(range(batch))))
    ((reason, given),) = guarded.lost
    assert re.fullmatch(r"when read again, sample \d+\[0\] differs", reason)
    assert given  # the script has received samples of this epoch that were not compared


def test_a_trial_pays_for_the_comparisons_of_a_start_that_it_does_not_see() -> None:
    guarded = Guarded(Rows(12000), copies=False)
    guarded.epoch(100)
    before = guarded.dataset.visits
    guarded.load.spread_comparisons()
    guarded.load.spread_comparisons()
    guarded.load.__getitems__(list(range(12000)))
    assert abs(guarded.dataset.visits - before - COMPARED_FRAC * 12000 - compared_samples(12000)) <= 1


def test_a_trial_pays_no_start_twice() -> None:
    guarded = Guarded(Rows(1500), copies=False)
    guarded.epoch(100)
    guarded.load.spread_comparisons()
    for _ in range(2):  # each epoch is seen from its start
        before = guarded.dataset.visits
        guarded.epoch(100)
        assert abs(guarded.dataset.visits - before - 2 * compared_samples(1500)) <= 1
        guarded.load.spread_comparisons()


@pytest.mark.parametrize("begins", [True, False])
def test_a_sample_that_is_the_same_but_draws_is_noticed_and_nothing_has_moved(begins: bool) -> None:
    guarded = Guarded(Rows())
    guarded.epoch()
    guarded.dataset.drawn = 1
    if begins:
        before = get_random_state()
        guarded.load.begin_epoch()
        assert moved_generator(before, get_random_state()) == ""
    else:
        np.random.seed(3)  # noqa: NPY002
        guarded.load.__getitems__([0, 1, 2])
        once = np.random.rand()  # noqa: NPY002
        np.random.seed(3)  # noqa: NPY002
        assert np.random.rand(4)[3] == once  # noqa: NPY002
    ((reason, _),) = guarded.lost
    assert re.fullmatch(r"reading a sample draws random numbers \(numpy.random\)", reason)


@pytest.mark.parametrize("many", [False, True])
def test_a_batch_with_one_that_differs_is_read_again_whole(many: bool) -> None:
    guarded = Guarded((ManyRows if many else Rows)(), many=many)
    guarded.load.__getitems__([0, 1, 2])
    guarded.dataset.noise = 0.5
    assert [value(sample) for sample in guarded.load.__getitems__([0, 1, 5])] == [0.5, 1.5, 5.5]
    assert len(guarded.lost) == 1


def test_what_was_handed_out_may_be_changed_in_place() -> None:
    guarded = Guarded(Rows())
    for _ in range(3):
        sample = guarded.load[4]
        assert value(sample) == 4
        sample[0].add_(1)
        sample.append("more")
    shared = Guarded(Rows(), copies=False)
    assert shared.load[4] is shared.load[4]


def test_a_cache_that_fails_is_passed_by() -> None:
    guarded = Guarded(Rows())
    guarded.load.__getitems__([0, 1, 2])
    guarded.kept.samples = None  # type: ignore[assignment]
    assert value(guarded.load[1]) == 1
    assert "caching failed: TypeError" in guarded.lost[0][0]


def test_what_the_dataset_raises_is_its_own_and_ends_nothing() -> None:
    guarded = Guarded(Rows())
    guarded.dataset.fails = True
    with pytest.raises(KeyError) as caught:
        guarded.load[1]
    assert caught.value.__context__ is None
    guarded.dataset.fails = False
    assert value(guarded.load[1]) == 1
    assert guarded.lost == []


@pytest.mark.parametrize("index", ["name", -1, NUM, (0, 1), torch.tensor(3), True])
def test_other_indices_go_to_the_dataset(index: Any) -> None:
    guarded = Guarded(Rows())
    guarded.load[index]
    guarded.load.__getitems__([index])
    assert guarded.kept.samples == {}
    assert guarded.dataset.visits == 2


def test_numpy_indices_are_kept_as_numbers() -> None:
    guarded = Guarded(Rows())
    guarded.load[np.int64(3)]
    assert set(map(type, guarded.kept.samples)) == {int}


def test_several_are_read_in_one_call_where_the_dataset_can() -> None:
    dataset = ManyRows()
    guarded = Guarded(dataset, many=True)
    guarded.load.__getitems__([1, 2, 3])
    assert dataset.calls == 1
    assert not Reads(Rows()).in_one_call


def test_once_lost_everything_is_fresh_and_the_reason_is_told_once() -> None:
    guarded = Guarded(Rows())
    guarded.epoch()
    guarded.trust.lose("first", given=False)
    guarded.trust.lose("second", given=True)
    assert (guarded.lost, guarded.trust.reason) == ([("first", False)], "first")
    guarded.dataset.noise = 0.5
    assert value(guarded.load[2]) == 2.5
    ended = Guarded(Rows())
    ended.trust.end()
    ended.epoch()
    assert ended.kept.samples == {}
    assert ended.lost == []


class GatheredRows(Guarded):
    """Rows that are cached in tensors, of which batches are gathered."""

    def __init__(self, num: int = 64) -> None:
        super().__init__(Rows(num), copies=False)
        self.rows = StackedSamples(num)
        reads = self.load._reads
        for index in range(num):
            self.rows.put(index, self.dataset[index])
        self.load = PureLoad(
            reads.one, self.rows.get, reads, self.trust, num_samples=num, kept_batch=self.rows.batch, copies=False
        )
        self.dataset.visits = 0


def test_a_gathered_batch_is_compared_with_fresh_samples() -> None:
    gathered = GatheredRows()
    gathered.load.begin_epoch()
    assert gathered.dataset.visits == 64
    gathered.load._rate = COMPARED_FRAC
    for start in range(0, 64, 16):
        batch = gathered.load.batch(list(range(start, start + 16)))
        assert batch[0][:, 0].tolist() == list(range(start, start + 16))
    assert gathered.dataset.visits == 64 + 4
    gathered.dataset.noise = 0.5
    assert gathered.load.batch(list(range(16))) is None
    ((reason, given),) = gathered.lost
    assert re.fullmatch(r"when read again, sample \d+\[0\] differs", reason)
    assert given
    assert gathered.load.batch([1]) is None


def test_a_gathered_batch_that_differs_from_a_collated_one_is_not_given() -> None:
    gathered = GatheredRows()
    gathered.load._kept_batch = lambda indices: gathered.rows.batch(indices[::-1])
    assert gathered.load.batch([1, 2]) is None
    assert gathered.lost == [("a batch of cached samples differs from one of fresh samples", False)]


@pytest.mark.parametrize("index", [3, [64], [-1], ["a"], (1, 2), None])
def test_other_indices_are_not_gathered(index: Any) -> None:
    gathered = GatheredRows()
    assert gathered.load.batch(index) is None
    assert gathered.lost == []
