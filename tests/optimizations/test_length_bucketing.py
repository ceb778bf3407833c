"""Test that buckets reduce padding, keep all samples, and do not sort the epoch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hasten.core.errors import JobError
from hasten.core.job import Job
from hasten.core.live import BatchOrder
from hasten.optimizations.length_bucketing import LengthBucketing
from hasten.optimizations.trim_padding import TrimPadding
from hasten.train.trace import trace_step
from tests.optimizations.contract import Prepared, Ragged, make_loop


class Long(Ragged):
    """400 sequences of 1 to 20 tokens."""

    def train_data(self) -> Any:
        lengths = torch.randint(1, 21, (400,), generator=torch.Generator().manual_seed(6)).tolist()
        return [torch.ones(n, dtype=torch.long) for n in lengths]


def order_of(job: Job, *items: LengthBucketing) -> BatchOrder:
    live = make_loop(job, *items).live
    assert live.order is not None
    return live.order


def longest(job: Job, batches: list[list[int]]) -> list[int]:
    data: Any = job.train_data()
    return [max(len(data[index]) for index in batch) for batch in batches]


def test_it_is_a_pure_function_of_the_epoch() -> None:
    one, other = order_of(Long(), LengthBucketing()), order_of(Long(), LengthBucketing())
    state = torch.get_rng_state()
    epochs = [one(epoch) for epoch in range(3)]
    assert [other(epoch) for epoch in (2, 0, 1)] == [epochs[2], epochs[0], epochs[1]]
    assert epochs[0] != epochs[1]
    assert torch.equal(torch.get_rng_state(), state)


def test_epochs_do_not_end_with_the_long_ones() -> None:
    job = Long()
    lengths = longest(job, order_of(job, LengthBucketing(window_batches=100))(0))
    assert lengths != sorted(lengths)
    half = len(lengths) // 2
    first, second = sum(lengths[:half]) / half, sum(lengths[half:]) / half
    assert abs(first - second) < 3.0  # in a sorted epoch they would differ by ten
    assert min(lengths[-10:]) < 10


def test_batches_have_similar_lengths() -> None:
    job, item = Long(), LengthBucketing()
    plain, buckets = order_of(job)(0), order_of(job, item)(0)
    assert sum(longest(job, buckets)) < 0.8 * sum(longest(job, plain))
    assert sorted(len(batch) for batch in buckets) == sorted(len(batch) for batch in plain)


def test_with_trimming_fewer_positions_are_computed() -> None:
    widths = []
    for items in ((TrimPadding(),), (TrimPadding(), LengthBucketing())):
        live = make_loop(Long(), *items).live
        assert live.order is not None
        widths.append(sum(live.pipeline.fetch(0, batch).shape[1] for batch in live.order(0)))
    assert widths[1] < 0.8 * widths[0]


def test_equal_lengths_prove_nothing() -> None:
    class Equal(Ragged):
        def train_data(self) -> Any:
            return [torch.ones(5, dtype=torch.long)] * 20

    item = LengthBucketing()
    loop = make_loop(Equal(), item)
    assert not item.evidence(loop.live, trace_step(loop))[0].passed


def test_reading_lengths_of_random_samples_disturbs_nothing() -> None:
    class Samples(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 12

        def __getitem__(self, index: int) -> Any:
            return torch.ones(int(torch.randint(1, 20, ())), dtype=torch.long)

    class Drawn(Ragged):
        deterministic_transform = Job.deterministic_transform

        def train_data(self) -> Any:
            return Samples()

    one = order_of(Drawn(), LengthBucketing())
    state = torch.get_rng_state()
    epochs = [one(epoch) for epoch in (0, 1)]
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(5)
    other = order_of(Drawn(), LengthBucketing())
    assert [other(epoch) for epoch in (1, 0)] == [epochs[1], epochs[0]]


def test_an_unshuffled_job_keeps_its_windows() -> None:
    class Curriculum(Long):
        shuffle = False

    batches = order_of(Curriculum(), LengthBucketing(window_batches=5))(0)
    assert all(len({index // 20 for index in batch}) == 1 for batch in batches)


def test_an_iterable_dataset_is_refused() -> None:
    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter([(torch.zeros(6),)])

    kind: type[Job] = type("Streamed", (Prepared,), {"train_data": lambda _: Stream()})
    with pytest.raises(JobError, match="needs a map-style dataset"):
        make_loop(kind(), LengthBucketing())


def test_a_window_of_one_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2, not 1"):
        LengthBucketing(window_batches=1)
