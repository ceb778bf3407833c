"""Test that merged micro-batches give the same samples and updates from fewer and larger batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import hasten
from hasten.core.errors import JobError, PlanError
from hasten.core.job import Job
from hasten.core.live import LoaderSettings, merge_windows, merged_per_update
from hasten.core.plan import Plan
from hasten.optimizations.length_bucketing import LengthBucketing
from hasten.optimizations.merged_microbatches import MergedMicrobatches
from hasten.optimizations.microbatch import Microbatch
from hasten.profile.ceilings import measure_ceilings
from hasten.train.loop import Loop
from hasten.train.trace import trace_step
from hasten.tune.trials.gradients import gradient_batches
from tests.optimizations.cases.merged_microbatches import Accumulated
from tests.optimizations.contract import Images, Prepared, facts, make_loop, run
from tests.optimizations.test_microbatch import Means


class Double(Accumulated):
    """Weights per token in float64. The last update of an epoch has 2 micro-batches, with 4 and 2 samples."""

    def model(self) -> nn.Module:
        return super().model().double()


class Steps(Double):
    """Plain gradient descent with rate 1: an update moves the weights by exactly the gradient."""

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=1.0)


class FiveMeans(Means):
    """A mean per sample over 5 micro-batches: 23 samples in batches of 5, the last one of 3."""

    accumulation = 5


def moves(loop: Loop, updates: int) -> list[torch.Tensor]:
    """Return the change of all weights by each update, as one vector per update."""
    found = []
    for _ in range(updates):
        before = [p.detach().clone() for p in loop.live.model.parameters()]
        loop.run(1)
        after = loop.live.model.parameters()
        found.append(torch.cat([(now.detach() - old).flatten() for now, old in zip(after, before, strict=True)]))
    return found


# The update.


@pytest.mark.parametrize("merge", [0, 2, 3, 100])
def test_the_gradient_of_each_window_is_that_of_its_micro_batches(merge: int) -> None:
    plain, merged = make_loop(Steps()), make_loop(Steps(), MergedMicrobatches(merge=merge))
    for one, other in zip(moves(plain, 7), moves(merged, 7), strict=True):  # more than two epochs, with both partial windows
        assert torch.linalg.vector_norm(one - other) <= 1e-6 * torch.linalg.vector_norm(one)
        assert torch.linalg.vector_norm(one) > 0
    assert merged.losses == pytest.approx(plain.losses, rel=1e-6)
    assert merged.position == plain.position


@pytest.mark.parametrize("merge", [0, 2, 3, 4])
@pytest.mark.parametrize("job", [Means, FiveMeans])
def test_a_loss_that_is_a_mean_weighs_by_samples(job: type[Job], merge: int) -> None:
    assert run(job(), 9, MergedMicrobatches(merge=merge)) == pytest.approx(run(job(), 9), rel=1e-9)


def test_clipping_sees_the_gradient_of_the_window() -> None:
    kind: type[Job] = type("Clipped", (Double,), {"clip_norm": 0.05})
    assert run(kind(), 9, MergedMicrobatches(merge=0)) == pytest.approx(run(kind(), 9), rel=1e-9)


def test_an_update_keeps_its_samples_and_the_schedule_its_length() -> None:
    plain, merged = make_loop(Double()), make_loop(Double(), MergedMicrobatches(merge=2))
    for epoch in range(3):
        small, large = plain.live.batches(epoch), merged.live.batches(epoch)
        assert [len(batch) for batch in small] == [4] * 7 + [2]
        assert [len(batch) for batch in large] == [8, 4, 8, 4, 6]
        assert [index for batch in large for index in batch] == [index for batch in small for index in batch]
    assert merged.live.planned_updates == plain.live.planned_updates == 9
    merged.run(3)
    assert (merged.position.epoch, merged.position.samples) == (0, 30)


@pytest.mark.parametrize(
    "settings", [LoaderSettings(num_threads=2), LoaderSettings(num_workers=1)], ids=["threads", "workers"]
)
def test_other_loaders_bring_the_same_batches(settings: LoaderSettings) -> None:
    expected = run(Double(), 4, MergedMicrobatches(merge=2))
    loop = make_loop(Double(), MergedMicrobatches(merge=2))
    loop.live.loader = settings
    loop.run(4)
    loop.close()
    assert loop.losses == expected


def test_it_can_be_combined_with_another_order() -> None:
    sorted_too = run(Double(), 6, LengthBucketing(window_batches=2), MergedMicrobatches(merge=0))
    assert sorted_too == pytest.approx(run(Double(), 6, LengthBucketing(window_batches=2)), rel=1e-9)
    loop = make_loop(Double(), LengthBucketing(window_batches=2), MergedMicrobatches(merge=0))
    trace = trace_step(loop)
    for item, _ in loop.live.applied:
        assert all(check.passed for check in item.evidence(loop.live, trace)), item


# The windows.


@pytest.mark.parametrize(
    ("micro_batches", "accumulation", "merge", "sizes", "per_update"),
    [
        (8, 3, 1, [1] * 8, 3),
        (8, 3, 2, [2, 1, 2, 1, 2], 2),
        (8, 3, 0, [3, 3, 2], 1),
        (8, 3, 9, [3, 3, 2], 1),
        (7, 4, 3, [3, 1, 3], 2),
        (2, 4, 0, [2], 1),
        (3, 1, 0, [1, 1, 1], 1),
        (0, 4, 2, [], 2),
    ],
)
def test_windows(micro_batches: int, accumulation: int, merge: int, sizes: list[int], per_update: int) -> None:
    batches = [[index] for index in range(micro_batches)]
    merged = merge_windows(batches, accumulation, merge)
    assert [len(batch) for batch in merged] == sizes
    assert [index for batch in merged for index in batch] == list(range(micro_batches))
    assert merged_per_update(accumulation, merge) == per_update


# Measurement and tracing.


def test_fewer_and_larger_batches_are_computed() -> None:
    rows: list[int] = []

    class Watched(Double):
        def loss(self, model: nn.Module, batch: Any) -> torch.Tensor | hasten.Loss:
            rows.append(len(batch))
            return super().loss(model, batch)

    item = MergedMicrobatches(merge=2)
    loop = make_loop(Watched(), item)
    loop.run(3)
    assert rows == [8, 4, 8, 4, 6]
    (check,) = item.evidence(loop.live, trace_step(loop))
    assert check.passed
    assert check.seen == "2 of 4 batches are larger than a micro-batch"


def test_merging_one_is_the_plain_run() -> None:
    item = MergedMicrobatches(merge=1)
    assert run(Double(), 6, item) == run(Double(), 6)
    loop = make_loop(Double(), item)
    assert not item.evidence(loop.live, trace_step(loop))[0].passed


def test_gradients_are_sampled_on_the_same_micro_batches_for_each_merge() -> None:
    loops = make_loop(Double()), make_loop(Double(), MergedMicrobatches(merge=0))
    plain, merged = (gradient_batches(loop, 3) for loop in loops)
    assert [size for _, size in merged] == [size for _, size in plain] == [4, 4, 4, 2, 4]
    assert all(torch.equal(one, other) for (one, _), (other, _) in zip(plain, merged, strict=True))
    assert loops[1].live.merge == 0


def test_ceilings_replay_the_merged_batches() -> None:
    seen: list[int] = []

    class Watched(Double):
        def loss(self, model: nn.Module, batch: Any) -> torch.Tensor | hasten.Loss:
            seen.append(len(batch))
            return super().loss(model, batch.contiguous())

    measure_ceilings(make_loop(Watched(), MergedMicrobatches(merge=0)), 2, lambda _: None)
    assert set(seen) == {12}


# Refusals.


def test_settings() -> None:
    offered = {accumulation: MergedMicrobatches.fit(facts(job={"accumulation": accumulation})) for accumulation in (2, 3, 8)}
    assert [item.settings()["merge"] for item in offered[2].settings] == [0]  # 2 of 2 is all of them
    assert [item.settings()["merge"] for item in offered[3].settings] == [0, 2]
    assert [item.settings()["merge"] for item in offered[8].settings] == [0, 4, 2]
    assert offered[8].max_gain_frac == pytest.approx(0.5)  # forward and backward
    with pytest.raises(ValueError, match="at least 0, not -1"):
        MergedMicrobatches(merge=-1)
    with pytest.raises(PlanError, match="exclude each other"):
        Plan(optimizations=(Microbatch(), MergedMicrobatches()))


def test_an_iterable_dataset_is_refused() -> None:
    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter([(torch.zeros(6),)])

    kind: type[Prepared] = type("Streamed", (Prepared,), {"train_data": lambda _: Stream(), "accumulation": 2})
    with pytest.raises(JobError, match="needs a map-style dataset"):
        make_loop(kind(), MergedMicrobatches())


def test_batch_statistics_would_change() -> None:
    """Show why BatchNorm is refused: a merged batch has other statistics than its micro-batches."""
    kind: type[Job] = type("Accumulated", (Images,), {"accumulation": 2})
    assert run(kind(), 2, MergedMicrobatches()) != pytest.approx(run(kind(), 2), rel=1e-4)
