"""Test that batches in reused memory equal torch's batches bit by bit, and that a batch in use is never overwritten."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset, default_collate

from hasten.core.batch import iter_tensors
from hasten.core.errors import JobError
from hasten.core.job import Job
from hasten.core.live import LiveJob
from hasten.core.plan import Plan
from hasten.optimizations.loader_threads import LoaderThreads
from hasten.optimizations.microbatch import Microbatch
from hasten.optimizations.pinned_memory import PinnedMemory
from hasten.optimizations.reused_buffers import ReusedBuffers
from hasten.train.build import build
from hasten.train.loop import Loop
from hasten.train.trace import trace_step
from hasten.train.validate import HeldOut
from tests.optimizations.contract import Attention, Images, Ragged, facts, make_loop, run

ALL = ReusedBuffers(min_bytes=0)
Pair = namedtuple("Pair", ["left", "right"])  # noqa: PYI024  as users write it


def live_with(job: type[Job] = Images, *others: Any) -> LiveJob:
    return make_loop(job(), ALL, *others).live


def samples(number: int, count: int = 4) -> list[torch.Tensor]:
    """Return samples of 12 elements that are all `number`."""
    return [torch.full((12,), float(number)) for _ in range(count)]


def same(one: Any, other: Any) -> bool:
    """Return whether two batches are equal in structure, types, layout and bits."""
    if isinstance(one, torch.Tensor):
        return (one.dtype, one.shape, one.stride(), one.requires_grad) == (
            other.dtype, other.shape, other.stride(), other.requires_grad,
        ) and torch.equal(one, other)  # fmt: skip
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(same(*both) for both in zip(one, other, strict=True))
    return bool(one == other)


@pytest.mark.parametrize(
    "make",
    [
        lambda i: torch.arange(6.0) + i,
        torch.tensor,
        lambda i: torch.tensor([i > 1, True]),
        lambda i: torch.full((2, 3), i, dtype=torch.bfloat16),
        lambda i: torch.full((1, 5, 5), float(i)),
        lambda i: torch.full((3, 1, 1), float(i)),
        lambda i: (torch.arange(60.0).view(4, 5, 3) + i).permute(2, 0, 1),
        lambda i: (torch.arange(60.0).view(1, 3, 4, 5) + i).to(memory_format=torch.channels_last),
        lambda i: (torch.arange(6.0).view(2, 3) + i).t(),
        lambda i: torch.tensor(float(i)).expand(2, 3),
        lambda i: torch.tensor([1 + 2j, 3j]).conj() * (i + 1),
        lambda i: torch.full((2,), 1j * i).conj(),
        lambda _: torch.empty(0, 3),
        lambda _: torch.zeros(2, requires_grad=True),
        lambda i: torch.zeros(2, dtype=torch.float32 if i else torch.float64),
        lambda i: np.full((3, 2), i, dtype=np.uint8),
        np.float32,
        lambda i: (i, float(i), "name", torch.ones(2) * i),
        lambda i: {"x": torch.ones(3) * i, "deep": [np.arange(2) + i, {"y": torch.tensor([i])}], "name": b"a"},
        lambda i: Pair(torch.ones(2) * i, i),
    ],
)
def test_a_batch_equals_that_of_torch(make: Any) -> None:
    collate, given = live_with().pipeline.collate, [make(i) for i in range(3)]
    expected = default_collate(given)
    for _ in range(3):  # first in new memory, then in reused memory
        assert same(collate(list(given)), expected)


def test_memory_is_reused_once_nothing_needs_the_batch() -> None:
    live = live_with()
    first = live.pipeline.collate(samples(1))
    address = first.data_ptr()
    assert address % 64 == 0
    second = live.pipeline.collate(samples(2))
    assert second.data_ptr() != address
    assert float(first.sum()) == 48.0
    del first
    short = live.pipeline.collate(samples(3, count=2))
    assert short.data_ptr() == address
    assert short.shape == (2, 12)
    assert live.counters == {"batches_in_new_buffers": 2, "batches_in_reused_buffers": 1}


@pytest.mark.parametrize(
    "keep",
    [
        lambda batch: batch,
        lambda batch: batch[1, 2:3],
        lambda batch: batch.detach().view(-1),
        lambda batch: batch.numpy()[0],
        lambda batch: np.asarray(batch[2]),
        lambda batch: batch.untyped_storage(),
        torch.utils.dlpack.from_dlpack,
    ],
    ids=["batch", "view", "detached", "array", "array_of_row", "storage", "dlpack"],
)
def test_a_batch_that_is_still_needed_is_not_written_over(keep: Any) -> None:
    live = live_with()
    batch = live.pipeline.collate(samples(7))
    address = batch.data_ptr()
    kept = keep(batch)
    del batch
    others = [live.pipeline.collate(samples(number)) for number in range(20)]
    assert address not in {other.data_ptr() for other in others}
    seen = torch.empty(0).set_(kept, 0, (48,), (1,)) if isinstance(kept, torch.UntypedStorage) else torch.as_tensor(kept)
    assert seen.eq(7).all()


def test_tensors_saved_for_backward_survive_later_batches() -> None:
    live = live_with()
    weight = torch.zeros(12, requires_grad=True)
    loss = (live.pipeline.collate(samples(7)) * weight).sum()
    for number in range(20):
        live.pipeline.collate(samples(number))
    loss.backward()
    assert weight.grad is not None
    assert weight.grad.eq(28).all()


@pytest.mark.parametrize(("others", "slots"), [((), 3), ((LoaderThreads(num_threads=2, ahead=5),), 7)])
def test_kept_batches_stay_intact_and_the_ring_stays_small(others: Any, slots: int) -> None:
    live = live_with(Attention, *others)
    kept = [live.pipeline.collate(samples(number)) for number in range(20)]
    assert [float(batch.mean()) for batch in kept] == list(range(20))
    buffers: Any = live.pipeline.collate
    assert {place: len(ring) for place, ring in buffers.rings.items()} == {0: slots}
    before = live.counters["batches_in_new_buffers"]
    for number in range(5):
        live.pipeline.collate(samples(number))
    assert live.counters["batches_in_new_buffers"] == before + 1
    assert [float(batch.mean()) for batch in kept] == list(range(20))


def test_a_larger_batch_takes_the_place_of_a_smaller_buffer() -> None:
    live = live_with()
    for count in (1, 2, 3, 4, 5, 6):
        assert live.pipeline.collate(samples(count, count=count)).eq(count).all()
    buffers: Any = live.pipeline.collate
    assert len(buffers.rings[0]) == buffers.num_slots == 3


def test_small_tensors_are_left_alone() -> None:
    live = make_loop(Images(), ReusedBuffers()).live
    batch = live.pipeline.collate([(torch.ones(2**15), 1), (torch.ones(2**15), 2)])
    assert [tensor.numel() for tensor in iter_tensors(batch)] == [2**16, 2]
    buffers: Any = live.pipeline.collate
    assert list(buffers.rings) == [0]
    live.pipeline.collate([torch.ones(2**14 - 1)] * 2)
    assert live.counters == {"batches_in_new_buffers": 1}


class Windows(Images):
    """Three micro-batches per update."""

    accumulation = 3

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(400, 5))


class Remembering(Images):
    """Keeps a view of every batch, and also trains on the oldest one."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        vars(self).setdefault("seen", []).append(batch[0][:1])
        return super().loss(model, batch) + model(torch.cat([self.seen[0], batch[0]]))[0].square().sum()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("job", "others"),
    [
        (Images, ()),
        (Windows, ()),
        (Windows, (Microbatch(parts=2),)),
        (Remembering, ()),
        (Attention, (LoaderThreads(num_threads=3, ahead=4),)),
        (Attention, (LoaderThreads(num_threads=2, ahead=1),)),
    ],
)
def test_losses_are_bit_equal(job: type[Job], others: Any) -> None:
    assert run(job(), 12, ALL, *others) == run(job(), 12, *others)


class Streamed(Images):
    """Images from an iterable dataset."""

    def train_data(self) -> Dataset[Any]:
        return _InOrder()


class _InOrder(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([(torch.full((3, 12, 12), float(i)), i % 5) for i in range(14)])


def test_data_that_is_read_in_order_is_collated_into_them_too() -> None:
    loop = make_loop(Streamed(), ALL)
    loop.run(9)
    assert loop.losses == run(Streamed(), 9)
    assert loop.live.counters["batches_in_reused_buffers"] >= 5


class Validated(Images):
    """A job with held-out images."""

    def valid_data(self) -> Dataset[Any]:
        return self.train_data()


def test_validation_shares_the_buffers_with_training() -> None:
    loop = make_loop(Validated(), ALL)
    held_out = HeldOut(loop.live)
    measured = held_out.measure()  # in inference mode, before training uses the buffers
    loop.run(6)
    again = held_out.measure()
    plain = make_loop(Validated())
    expected = HeldOut(plain.live).measure()
    plain.run(6)
    assert (measured, loop.losses, again) == (expected, plain.losses, HeldOut(plain.live).measure())


def test_a_job_that_collates_itself_is_refused() -> None:
    with pytest.raises(JobError, match=r"Ragged\.collate creates the batches itself: remove reused_buffers"):
        make_loop(Ragged(), ALL)


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(ValueError, match="min_bytes must be at least 0, not -1"):
        ReusedBuffers(min_bytes=-1)


def test_the_bound_is_the_time_after_loading() -> None:
    fit = ReusedBuffers.fit(facts(sample_bytes=2**20, load_frac=0.75, ceilings={"input": 2.0}))
    assert fit.max_gain_frac == pytest.approx(0.5 * 0.25)


@pytest.mark.gpu
def test_page_locked_batches_are_collated_where_they_are_sent_from() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")
    cuda = torch.device("cuda")
    plan = Plan(optimizations=(ALL, PinnedMemory()))
    loop = Loop(build(Images(), plan, device=cuda))
    assert loop.live.pipeline.collate(samples(1)).is_pinned()
    assert all(check.passed for check in ALL.evidence(loop.live, trace_step(loop)))
    loop.run(9)
    assert "batches_in_reused_buffers" not in loop.live.counters
    assert loop.losses == run(Images(), 9, PinnedMemory(), device=cuda)


@pytest.mark.gpu
def test_pageable_batches_are_reused_under_a_gpu_too() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")
    cuda = torch.device("cuda")
    assert run(Images(), 9, ALL, device=cuda) == run(Images(), 9, device=cuda)
