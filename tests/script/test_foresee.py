"""A sampler's batches are foreseen, and neither it nor any generator has moved."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
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
from hasten.script.data.alike import moved_generator
from hasten.script.data.foresee import AT_ONCE, Foreseen, NotForeseenError, draws_at_start, same_index

NUM = 103


class Rows(Dataset[Any]):
    labels = (1, 2)

    def __len__(self) -> int:
        return NUM

    def __getitem__(self, index: int) -> int:
        return index


ROWS = Rows()


class Eager(Sampler[Any]):
    """Draws its order when it is asked for an iterator, and counts."""

    def __init__(self, data: Any = ROWS) -> None:
        self.data, self.epochs = data, 0
        self.order = list(range(len(data)))

    def __iter__(self) -> Iterator[Any]:
        self.epochs += 1
        random.shuffle(self.order)
        return iter([self.order[at : at + 4] for at in range(0, len(self.order), 4)])


class Lazy(Sampler[Any]):
    def __init__(self, draw: Callable[[], int], data: Any = ROWS) -> None:
        self.draw, self.data = draw, data

    def __iter__(self) -> Iterator[Any]:
        for _ in range(len(self.data)):
            yield self.draw() % NUM


class OwnGenerators(Sampler[Any]):
    def __init__(self) -> None:
        self.numpy, self.python = np.random.default_rng(1), random.Random(2)
        self.torch = torch.Generator().manual_seed(3)

    def __iter__(self) -> Iterator[Any]:
        for _ in range(50):
            yield self.python.randrange(9), int(self.numpy.integers(9)), int(torch.randint(9, (), generator=self.torch))


class Epochs(DistributedSampler[Any]):
    """Sets its own epoch, as some do."""

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
    "eager": Eager,
    "eager within a batch sampler": lambda: BatchSampler(Eager(), 2, drop_last=False),
    "lazy": lambda: Lazy(lambda: int(torch.randint(NUM, ()))),
    "own generators": OwnGenerators,
    "epochs": lambda: Epochs(ROWS, 2, 0),
}


@pytest.mark.parametrize("case", SAMPLERS)
def test_what_comes_is_foreseen_and_nothing_moves(case: str) -> None:
    seed_everything(7)
    sampler = SAMPLERS[case]()
    for _ in range(3):  # epochs
        before = get_random_state()
        foreseen = Foreseen(sampler, ROWS)
        assert moved_generator(before, get_random_state()) == ""
        given = iter(sampler)
        torch.rand(1)  # a loader draws the seed of its workers here
        foreseen.begin()
        before = get_random_state()
        some = foreseen.peek(3)
        found = list(foreseen)
        assert moved_generator(before, get_random_state()) == ""
        really = list(given)
        assert found == really
        assert some == found[:3]
        assert foreseen.peek(1) == []


def test_without_a_look_ahead_a_sampler_goes_the_same_way() -> None:
    runs = []
    for ahead in (False, True):
        seed_everything(7)
        samplers = [make() for make in SAMPLERS.values()]
        for sampler in samplers if ahead else []:
            foreseen = Foreseen(sampler, ROWS)
            foreseen.begin()
            foreseen.peek(5)
        runs.append([list(itertools.islice(sampler, 100)) for sampler in samplers])
    assert runs[0] == runs[1]


def test_an_endless_sampler_is_looked_at_in_parts() -> None:
    class Endless(Sampler[int]):
        taken = 0

        def __iter__(self) -> Iterator[int]:
            while True:
                type(self).taken += 1
                yield random.randrange(1 << 30)

    random.seed(3)
    foreseen = Foreseen(Endless(), ROWS)
    foreseen.begin()
    found = [next(foreseen) for _ in range(3 * AT_ONCE)]
    assert Endless.taken <= 4 * AT_ONCE
    assert found == list(itertools.islice(Endless(), 3 * AT_ONCE))


class Looks(Sampler[Any]):
    def __init__(self, held: Any) -> None:
        self.held = held

    def __iter__(self) -> Iterator[Any]:
        yield self.held


class Reads(Looks):
    def __iter__(self) -> Iterator[Any]:
        yield self.held[0]


class Asks(Looks):
    def __iter__(self) -> Iterator[Any]:
        yield self.held.labels


class Sets(Looks):
    def __iter__(self) -> Iterator[Any]:
        self.held.epoch = 3
        yield 0


@pytest.mark.parametrize(
    ("sampler", "words"),
    [
        (Looks(nn.Linear(1, 1)), "looks at the Linear"),
        (Looks(torch.optim.SGD([torch.zeros(1)])), "looks at the SGD"),
        (Looks(at for at in range(3)), "the sampler Looks cannot be copied"),
        (iter([[0]]), "[0]"),
        (Looks(np.zeros(1 << 24)), "more than 64 MiB"),
        (Reads(ROWS), "reads the dataset"),
        (Asks(ROWS), "uses `labels` of the dataset"),
        (Sets(ROWS), "sets `epoch` of the dataset"),
    ],
)  # fmt: skip
def test_a_sampler_that_cannot_be_run_ahead_is_refused(sampler: Any, words: str) -> None:
    if words == "[0]":  # an iterator can be copied where it stands
        assert Foreseen(sampler, ROWS).peek(2) == [[0]]
        assert list(sampler) == [[0]]
        return
    with pytest.raises(NotForeseenError) as caught:
        Foreseen(sampler, ROWS).peek(1)
    assert words in str(caught.value)
    assert not hasattr(ROWS, "epoch")


def test_a_dataset_of_any_class_is_not_copied() -> None:
    class Plain:
        def __len__(self) -> int:
            return 3

        def __reduce__(self) -> Any:
            raise AssertionError

    plain = Plain()
    seed_everything(0)
    foreseen = Foreseen(Eager(plain), plain)
    assert len(foreseen.peek(5)) == 1


@pytest.mark.parametrize(
    ("foreseen", "given", "same"),
    [
        ([1, 2], [1, 2], True),
        ([1, 2], [2, 1], False),
        ([torch.tensor(1)], [torch.tensor(1)], True),
        (torch.tensor([1, 2]), torch.tensor([1, 2]), True),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), False),
        (torch.tensor([1, 2]), torch.tensor([1]), False),
        (np.array([1, 2]), np.array([1, 2]), True),
        (np.array([1, 2]), [1, 2], False),
        ([torch.ones(2)], [torch.ones(2)], False),
        (("a", 1), ("a", 1), True),
    ],
)
def test_indices_are_compared(foreseen: Any, given: Any, same: bool) -> None:
    assert same_index(foreseen, given) is same


def test_samplers_that_draw_as_they_go_are_told() -> None:
    assert draws_at_start(BatchSampler(RandomSampler(ROWS), 4, drop_last=False))
    assert draws_at_start(SequentialSampler(ROWS))
    assert not draws_at_start(shared_generator())
    assert not draws_at_start(Eager())
    assert not draws_at_start(Epochs(ROWS, 2, 0))
