"""The batches of PyTorch's samplers are predicted without changing the sampler or any generator."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from hasten.core.seeding import get_random_state, seed_everything
from hasten.script.data.equality import moved_generator
from hasten.script.data.lookahead import Lookahead, draws_at_start, same_index, why_unpredictable

NUM = 103


class Rows(Dataset[Any]):
    def __len__(self) -> int:
        return NUM

    def __getitem__(self, index: int) -> int:
        return index


ROWS = Rows()


class Own(Sampler[Any]):
    """A custom sampler."""

    def __iter__(self) -> Iterator[Any]:
        order = list(range(NUM))
        random.shuffle(order)
        return iter(order)


class Epochs(DistributedSampler[Any]):
    """Sets its own epoch, as some samplers do."""

    def __iter__(self) -> Iterator[Any]:
        self.set_epoch(self.epoch + 1)
        return super().__iter__()


def shared_generator() -> Any:
    generator = torch.Generator().manual_seed(4)
    return BatchSampler(RandomSampler(ROWS, generator=generator), 4, drop_last=True)


SAMPLERS: dict[str, Callable[[], Any]] = {
    "sequential": lambda: SequentialSampler(ROWS),
    "random": lambda: BatchSampler(RandomSampler(ROWS), 4, drop_last=False),
    "a generator given": shared_generator,
    "replacement": lambda: RandomSampler(ROWS, replacement=True, num_samples=300),
    "subset": lambda: BatchSampler(SubsetRandomSampler(range(5, 50)), 4, drop_last=True),
    "weighted": lambda: WeightedRandomSampler([1.0, 2.0, 3.0], 200),
    "distributed": lambda: BatchSampler(DistributedSampler(ROWS, 2, 1, seed=3), 4, drop_last=False),
    "list": lambda: [[0, 1], [2], [5, 4]],
}


@pytest.mark.parametrize("case", SAMPLERS)
def test_batches_are_computed_ahead_and_nothing_moves(case: str) -> None:
    seed_everything(7)
    sampler = SAMPLERS[case]()
    assert why_unpredictable(sampler) == ""
    for _ in range(3):  # epochs
        given = iter(sampler)
        torch.rand(1)  # a loader draws its workers' seed here
        before = get_random_state()
        lookahead = Lookahead(sampler)
        some = lookahead.peek(3)
        expected = list(lookahead)
        assert moved_generator(before, get_random_state()) == ""
        assert expected == list(given)
        assert some == expected[:3]
        assert lookahead.peek(1) == []


def test_a_sampler_goes_the_same_way_without_lookahead() -> None:
    runs = []
    for ahead in (False, True):
        seed_everything(7)
        samplers = [make() for make in SAMPLERS.values()]
        for sampler in samplers if ahead else []:
            Lookahead(sampler).peek(5)
        runs.append([list(itertools.islice(sampler, 100)) for sampler in samplers])
    assert runs[0] == runs[1]


def test_an_endless_sampler_is_read_in_parts() -> None:
    sampler = RandomSampler(ROWS, replacement=True, num_samples=10**10)
    seed_everything(3)
    lookahead = Lookahead(sampler)
    assert [next(lookahead) for _ in range(90)] == list(itertools.islice(sampler, 90))


@pytest.mark.parametrize("sampler", [Own(), BatchSampler(Own(), 2, drop_last=False), Epochs(ROWS, 2, 0), iter([[0]])])
def test_other_samplers_are_not_run_ahead(sampler: Any) -> None:
    assert "is not one of PyTorch's samplers" in why_unpredictable(sampler)


@pytest.mark.parametrize(
    ("expected", "given", "same"),
    [
        ([1, 2], [1, 2], True),
        ([1, 2], [2, 1], False),
        ([1, 2], (1, 2), False),
        (("a", 1), ("a", 1), True),
        (3, 3, True),
    ],
)
def test_indices_are_compared(expected: Any, given: Any, same: bool) -> None:
    assert same_index(expected, given) is same


def test_samplers_that_draw_as_they_go_are_told() -> None:
    assert draws_at_start(BatchSampler(RandomSampler(ROWS), 4, drop_last=False))
    assert draws_at_start(SequentialSampler(ROWS))
    assert not draws_at_start(shared_generator())
    assert not draws_at_start(Own())
    assert not draws_at_start(Epochs(ROWS, 2, 0))
