"""Test that batched reading makes one call per batch and verifies the dataset."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import Subset

from hasten.core.errors import JobError
from hasten.optimizations.batched_reading import BatchedReading
from hasten.optimizations.loader_threads import LoaderThreads
from hasten.profile.probes import job_facts
from tests.optimizations.contract import Prepared, PreparedRows, Rows, make_loop, run


class CountedRows(Rows):
    """Counts its reads."""

    def __init__(self) -> None:
        super().__init__()
        self.singles = self.calls = 0

    def __getitem__(self, index: int) -> tuple[torch.Tensor]:
        self.singles += 1
        return super().__getitem__(index)

    def __getitems__(self, indices: list[int]) -> list[tuple[torch.Tensor]]:
        self.calls += 1
        return super().__getitems__(indices)


class Counted(PreparedRows):
    """A job with rows that count their reads."""

    def train_data(self) -> Any:
        return CountedRows()


def test_a_batch_is_one_call_and_only_the_first_is_compared() -> None:
    loop = make_loop(Counted(), BatchedReading())
    loop.run(4)
    assert (loop.live.dataset.calls, loop.live.dataset.singles) == (4, 4)


def test_threads_read_in_one_call_too() -> None:
    assert run(PreparedRows(), 9, BatchedReading(), LoaderThreads()) == run(PreparedRows(), 9)


class Wrong(Rows):
    """Returns the rows in the order of the table."""

    def __getitems__(self, indices: list[int]) -> list[tuple[torch.Tensor]]:
        return super().__getitems__(sorted(indices, reverse=True))


class Short(Rows):
    """Returns one row too few."""

    def __getitems__(self, indices: list[int]) -> list[tuple[torch.Tensor]]:
        return super().__getitems__(indices[1:])


@pytest.mark.parametrize(
    ("kind", "message"),
    [(Wrong, "Wrong.__getitem__ return different data for sample [0-9]+"), (Short, "returned 3 samples for 4")],
)
def test_a_wrong_dataset_is_found_at_once(kind: type[Rows], message: str) -> None:
    job: type[Prepared] = type("Wronged", (PreparedRows,), {"train_data": lambda _: kind(), "shuffle": False})
    with pytest.raises(JobError, match=message):
        run(job(), 1, BatchedReading())


class Seeded(PreparedRows):
    """Does not declare that its reading is deterministic."""

    def overrides(self, method: str) -> bool:
        return method != "deterministic_transform" and super().overrides(method)


def test_a_job_it_does_not_suit_is_refused() -> None:
    with pytest.raises(JobError, match="needs a dataset with `__getitems__`, not TensorDataset"):
        make_loop(Prepared(), BatchedReading())
    with pytest.raises(JobError, match="seeded per sample"):
        make_loop(Seeded(), BatchedReading())


@pytest.mark.parametrize(
    ("data", "expected"),
    [(Rows(), True), (Subset(Rows(), range(8)), True), ([(torch.zeros(6),)] * 8, False), (Subset([1] * 8, range(8)), False)],  # type: ignore[arg-type]
)
def test_a_subset_reads_at_once_if_its_dataset_does(data: Any, expected: bool) -> None:
    job: type[Prepared] = type("OfData", (Prepared,), {"train_data": lambda _: data})
    assert job_facts(make_loop(job()).live).has_getitems is expected
