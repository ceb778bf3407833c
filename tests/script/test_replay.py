"""The cached batches that a script's loop reads when data is free, and what it reads afterwards."""

from __future__ import annotations

import gc
import multiprocessing
import time
from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from hasten.script.watch.fetch import Fetch
from hasten.script.watch.record import Recorder
from hasten.script.watch.replay import KEPT, Replay
from hasten.script.watch.seams import Seams
from hasten.script.watch.trained import Trained

Rows = tuple[torch.Tensor, ...]


@pytest.fixture
def watched() -> Iterator[Seams]:
    recorder = Recorder(updates=0, seconds=0.0)
    seams = Seams(recorder, Fetch(recorder, Trained(), Replay(recorder)))
    seams.install()
    yield seams
    seams.remove()


def loader_of(batches: int, workers: int) -> DataLoader[Rows]:
    table = TensorDataset(torch.arange(batches * 2))
    return DataLoader(table, batch_size=2, num_workers=workers, multiprocessing_context="fork" if workers else None)


def rows(loader: DataLoader[Rows]) -> list[int]:
    return [int(row) for (batch,) in loader for row in batch]


@pytest.mark.parametrize("workers", [0, 1])
def test_an_epoch_of_kept_batches_is_as_long_as_it_was(watched: Seams, workers: int) -> None:
    loader = loader_of(KEPT + 3, workers)
    first = rows(loader)
    assert first[: KEPT * 2] == list(range(KEPT * 2))
    again = rows(loader)
    assert len(again) == len(first)
    assert set(again) == set(range(KEPT * 2))
    assert watched.recorder.has_workers == bool(workers)


def test_an_epoch_of_kept_batches_begins_no_workers(watched: Seams) -> None:
    loader = loader_of(3, 1)
    epoch = iter(loader)
    assert multiprocessing.active_children()
    assert len(list(epoch)) == 3
    del epoch
    assert not multiprocessing.active_children()
    for _ in loader:
        assert not multiprocessing.active_children()
    assert watched.recorder.current[:1] == [0.0]


def test_an_epoch_continues_with_the_loaders_own_batches_once_watching_stops(watched: Seams) -> None:
    loader = loader_of(4, 1)
    list(loader)
    epoch = iter(loader)
    next(epoch)
    watched.recorder.active = False
    watched.remove()
    assert [int(row) for (batch,) in epoch for row in batch] == [0, 1, 2, 3, 4, 5]
    assert rows(loader) == list(range(8))


def test_another_loader_and_an_evaluation_are_left_alone(watched: Seams) -> None:
    list(loader_of(3, 1))
    other = loader_of(5, 1)
    assert rows(other) == list(range(10))
    with torch.no_grad():
        epoch = iter(other)
        assert multiprocessing.active_children()
        del epoch
    assert watched.recorder.active


class Numbers(Dataset[Rows]):
    __slots__ = tuple(f"unused_{number}" for number in range(50))  # an unusual size, so that its address stays free

    def __init__(self, count: int) -> None:
        self.table = torch.arange(count)

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> Rows:
        return (self.table[index],)


def test_a_data_set_at_the_address_of_a_gone_one_is_another(watched: Seams) -> None:
    first = Numbers(6)
    address = id(first)
    assert rows(DataLoader(first, batch_size=2)) == list(range(6))
    del first
    gc.collect()
    tries = [Numbers(10) for _ in range(100)]
    there = next((data for data in tries if id(data) == address), None)
    assert there is not None, "no dataset was created at the address of the first one"
    assert rows(DataLoader(there, batch_size=2)) == list(range(10))


def test_a_list_is_known_as_itself(watched: Seams) -> None:
    numbers = [(row,) for row in torch.arange(6)]
    assert rows(DataLoader(numbers, batch_size=2)) == list(range(6))  # type: ignore[arg-type]  # torch takes any sequence
    assert rows(DataLoader(numbers, batch_size=2)) == [2, 3, 4, 5, 0, 1]  # type: ignore[arg-type]


def test_a_loader_within_a_data_set_that_was_watched_before_breaks_nothing(watched: Seams) -> None:
    def collated(samples: list[Rows]) -> Rows:
        time.sleep(0.001)
        return (torch.stack([row for (row,) in samples]),)

    inner = iter(DataLoader(TensorDataset(torch.arange(8)), batch_size=2, collate_fn=collated))
    next(inner)

    class Outer(Dataset[Rows]):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> Rows:
            return next(inner)

    assert [int(row) for (batch,) in DataLoader(Outer(), batch_size=None) for row in batch][:2] == [2, 3]
    assert watched.recorder.active
