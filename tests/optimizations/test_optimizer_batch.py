"""Test that another number of samples per update keeps the samples of the run, and adapts the rate and the schedule."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hasten.core.errors import JobError
from hasten.core.plan import Plan
from hasten.optimizations.fused_optimizer import FusedOptimizer
from hasten.optimizations.one_cycle import OneCycle
from hasten.optimizations.optimizer_batch import OptimizerBatch
from tests.optimizations.contract import GIB, Prepared, Ragged, facts, make_loop
from tests.optimizations.test_schedules import PLANNED, RATE, Stream, rates


@pytest.mark.parametrize("factor", [2.0, 4.0, 0.5])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_the_run_sees_the_same_samples_in_another_number_of_updates(factor: float, accumulation: int) -> None:
    kind: type[Ragged] = type("Some", (Ragged,), {"accumulation": accumulation})
    plain, other = make_loop(kind()), make_loop(kind(), OptimizerBatch(factor=factor))
    seen = []
    for loop in (plain, other):
        assert loop.live.planned_updates is not None
        loop.run(loop.live.planned_updates)
        seen.append((loop.position.samples, loop.live.planned_updates))
    assert seen[0][0] == seen[1][0] == 90
    assert seen[1][1] == pytest.approx(seen[0][1] / factor, abs=1.5 * 3)  # the last batch of each of 3 epochs may be short
    assert max(len(batch) for batch in other.live.batches(0)) == 4 * factor


def test_a_number_of_updates_is_rescaled() -> None:
    kind: type[Ragged] = type("Counted", (Ragged,), {"num_updates": 20})
    assert make_loop(kind(), OptimizerBatch(factor=2.0)).live.planned_updates == 10
    assert make_loop(kind(), OptimizerBatch(factor=0.5)).live.planned_updates == 38  # 15 updates per epoch instead of 8


@pytest.mark.parametrize(("scaling", "times"), [("linear", 4.0), ("sqrt", 2.0), ("none", 1.0)])
def test_the_rate_is_scaled_in_the_step_alone(scaling: Any, times: float) -> None:
    item = OptimizerBatch(factor=4.0, scaling=scaling)
    assert rates(Ragged(), item, updates=2) == pytest.approx([times * RATE] * 2)
    loop = make_loop(Ragged(), item)
    loop.run(2)
    assert loop.live.optimizer.param_groups[0]["lr"] == RATE


def test_it_scales_the_rate_of_a_schedule_and_the_optimizer_of_another_technique() -> None:
    item = OptimizerBatch(factor=2.0, scaling="linear")
    planned = PLANNED // 2
    kind: type[Ragged] = type("Half", (Ragged,), {"num_updates": planned})
    expected = [2 * rate for rate in rates(kind(), OneCycle(), updates=planned)]
    assert rates(Ragged(), item, OneCycle(), FusedOptimizer(), updates=planned) == pytest.approx(expected)


class Planned(Ragged):
    """A job with a schedule that depends on the number of updates."""

    def schedule(self, optimizer: torch.optim.Optimizer, num_updates: int) -> Any:
        return torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=num_updates)


def test_the_jobs_schedule_is_made_for_the_new_length_and_back() -> None:
    loop = make_loop(Planned(), OptimizerBatch(factor=2.0))
    assert loop.live.scheduler is not None
    assert loop.live.scheduler.state_dict()["total_iters"] == PLANNED // 2
    loop.run(3)
    loop.live.undo_all()
    assert loop.live.scheduler.state_dict()["total_iters"] == PLANNED
    assert loop.live.optimizer.param_groups[0]["lr"] == RATE


def test_memory_that_would_run_short_has_larger_batches_computed_in_parts() -> None:
    settings = OptimizerBatch.fit(facts(peak_memory_bytes=5 * GIB)).settings
    assert {item.factor: item.parts for item in settings if isinstance(item, OptimizerBatch)} == {2.0: 2, 0.5: 1}
    live = make_loop(Ragged(), OptimizerBatch(factor=2.0, parts=2)).live
    assert live.micro_parts == 2


def test_the_rule_follows_the_optimizer() -> None:
    for name, scaling in (("SGD", "linear"), ("AdamW", "sqrt")):
        settings = OptimizerBatch.fit(facts(job={"optimizer_class": name})).settings
        assert {item.scaling for item in settings if isinstance(item, OptimizerBatch)} == {scaling}


def test_a_plan_tells_how_many_updates_see_as_many_samples() -> None:
    plan = Plan(optimizations=(OptimizerBatch(factor=4.0),))
    assert plan.samples_factor == 4.0
    assert [plan.updates_for(updates) for updates in (1, 8, 10, 400)] == [1, 2, 2, 100]
    assert Plan().updates_for(7) == 7


def test_invalid_settings_are_refused() -> None:
    with pytest.raises(JobError, match=r"batches of 4 samples into 6\.4"):
        make_loop(Ragged(), OptimizerBatch(factor=1.6))
    kind: type[Prepared] = type("Streamed", (Prepared,), {"train_data": lambda _: Stream()})
    with pytest.raises(JobError, match="needs a map-style dataset"):
        make_loop(kind(), OptimizerBatch())
    for factor in (0.0, 1.0, -2.0):
        with pytest.raises(ValueError, match="factor must be greater than 0 and not 1"):
            OptimizerBatch(factor=factor)
    with pytest.raises(ValueError, match="parts must be at least 1"):
        OptimizerBatch(parts=0)
