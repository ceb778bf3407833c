"""What is kept of samples that change after all is noticed, and the script gets fresh ones."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from hasten.script.data.guard import FIRST_CHECKED, LATER_ONE_IN, PureLoad, Reads, Trust, Turns

NUM = 10


class Rows(Dataset[Any]):
    def __init__(self) -> None:
        self.visits = 0
        self.noise = 0.0
        self.drawn = 0
        self.fails = False

    def __len__(self) -> int:
        return NUM

    def __getitem__(self, index: Any) -> Any:
        self.visits += 1
        if self.fails:
            raise KeyError(index)
        if self.drawn:
            np.random.rand()  # noqa: NPY002
        return [torch.full((3,), float(index if isinstance(index, int) else -1)) + self.noise]


class ManyRows(Rows):
    calls = 0

    def __getitems__(self, indices: list[int]) -> list[Any]:
        self.calls += 1
        return [self[index] for index in indices]


class Kept:
    """A load that keeps everything."""

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
        self.lost: list[str] = []
        reads = Reads(dataset)
        self.kept = Kept(reads)
        self.trust = Trust(self.lost.append)
        self.load = PureLoad(
            self.kept.one, reads, self.trust, num_samples=NUM, load_many=self.kept.many if many else None, copies=copies
        )

    def visit(self, times: int) -> list[Any]:
        return [self.load[at % NUM] for at in range(times)]


def value(sample: Any) -> float:
    return float(sample[0][0])


@pytest.mark.parametrize("many", [False, True])
def test_the_first_kept_samples_are_read_anew_and_later_few(many: bool) -> None:
    guarded = Guarded(Rows(), many=many)
    served = FIRST_CHECKED + 3 * LATER_ONE_IN
    found = guarded.visit(NUM + served)
    assert [value(sample) for sample in found] == [float(at % NUM) for at in range(NUM + served)]
    later = sum(at % LATER_ONE_IN == 0 for at in range(FIRST_CHECKED + 1, served + 1))
    assert later == 3
    assert guarded.dataset.visits == NUM + FIRST_CHECKED + later
    assert guarded.lost == []


@pytest.mark.parametrize("after", [NUM, NUM + FIRST_CHECKED + 5])
def test_samples_that_begin_to_differ_are_noticed_and_served_fresh(after: int) -> None:
    guarded = Guarded(Rows())
    guarded.visit(after)
    guarded.dataset.noise = 0.5
    found = guarded.visit(LATER_ONE_IN)
    assert len(guarded.lost) == 1
    assert re.fullmatch(r"read again, sample \d\[0\] differs", guarded.lost[0])
    noticed = next(at for at, sample in enumerate(found) if value(sample) % 1 == 0.5)
    assert all(value(sample) % 1 == 0.5 for sample in found[noticed:])
    if after == NUM:
        assert noticed == 0


def test_a_sample_that_is_the_same_but_draws_is_noticed() -> None:
    guarded = Guarded(Rows())
    guarded.visit(NUM)
    guarded.dataset.drawn = 1
    guarded.visit(1)
    assert guarded.lost == ["reading sample 0 draws random numbers (numpy.random)"]


def test_a_batch_with_one_that_differs_is_read_anew_whole() -> None:
    guarded = Guarded(ManyRows(), many=True)
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
    guarded.visit(3)
    guarded.kept.samples = None  # type: ignore[assignment]
    assert value(guarded.load[1]) == 1
    assert "keeping failed: TypeError" in guarded.lost[0]


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
    guarded.visit(NUM)
    guarded.trust.lose("first")
    guarded.trust.lose("second")
    assert (guarded.lost, guarded.trust.reason) == (["first"], "first")
    guarded.dataset.noise = 0.5
    assert value(guarded.load[2]) == 2.5
    ended = Guarded(Rows())
    ended.trust.end()
    ended.visit(3)
    assert ended.kept.samples == {}
    assert ended.lost == []


def test_turns_begin_again_when_asked() -> None:
    turns = Turns(2, 5)
    assert [turns.due() for _ in range(10)] == [True, True, False, False, True, False, False, False, False, True]
    turns.restart()
    assert [turns.due() for _ in range(3)] == [True, True, False]
