"""Test the schedules that replace a job's: their rates over a run, the momentum, and their undo."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from hasten.core.errors import JobError
from hasten.core.optimization import Optimization
from hasten.optimizations.fused_optimizer import FusedOptimizer
from hasten.optimizations.one_cycle import OneCycle
from hasten.optimizations.warmup_cosine import WarmupCosine
from tests.optimizations.contract import Prepared, Ragged, make_loop

RATE = 1e-2  # the rate of Ragged
PLANNED = 24


class Momentum(Ragged):
    """Stochastic gradient descent with momentum."""

    momentum = 0.7

    def optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=RATE, momentum=self.momentum)


class Stepped(Ragged):
    """A job with its own schedule."""

    def schedule(self, optimizer: torch.optim.Optimizer, num_updates: int) -> Any:
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: 0.5 if update < num_updates // 2 else 0.1)


def rates(job: Ragged, *items: Optimization, updates: int = PLANNED, key: str = "lr") -> list[float]:
    """Return a setting of the first group at each update."""
    loop = make_loop(job, *items)
    (group,) = loop.live.optimizer.param_groups
    found: list[float] = []
    loop.live.optimizer.register_step_pre_hook(lambda *_: found.append(group[key][0] if key == "betas" else group[key]))
    loop.run(updates)
    return found


def test_one_cycle_rises_to_its_peak_and_falls_to_nearly_nothing() -> None:
    seen = rates(Ragged(), OneCycle(max_lr_factor=5.0, pct_start=0.25))
    peak = seen.index(max(seen))
    assert peak == PLANNED // 4 - 1
    assert max(seen) == pytest.approx(5 * RATE)
    assert seen[0] == pytest.approx(5 * RATE / 25)
    assert seen[-1] < RATE / 1000
    assert seen[: peak + 1] == sorted(seen[: peak + 1])
    assert seen[peak:] == sorted(seen[peak:], reverse=True)


def test_momentum_is_cycled_where_there_is_one() -> None:
    betas = rates(Ragged(), OneCycle(), key="betas")
    assert (min(betas), max(betas)) == pytest.approx((0.85, 0.95), abs=2e-3)
    assert betas.index(min(betas)) == rates(Ragged(), OneCycle()).index(max(rates(Ragged(), OneCycle())))
    momentum = rates(Momentum(), OneCycle(), key="momentum")
    assert (min(momentum), max(momentum)) == pytest.approx((0.85, 0.95), abs=2e-3)
    without: type[Momentum] = type("Without", (Momentum,), {"momentum": 0.0})
    assert set(rates(without(), OneCycle(), key="momentum")) == {0.0}


def test_warmup_cosine_follows_its_formula() -> None:
    item = WarmupCosine(warmup_frac=0.25, final_frac=0.1, peak_factor=2.0)
    seen = rates(Ragged(), item)
    assert seen[:6] == pytest.approx([2 * RATE * (update + 1) / 6 for update in range(6)])
    assert seen[6] == pytest.approx(2 * RATE)
    assert seen[-1] == pytest.approx(0.2 * RATE)
    middle = 6 + (PLANNED - 1 - 6) / 2
    expected = [0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * (at - 6) / (PLANNED - 7))) for at in range(6, PLANNED)]
    assert seen[6:] == pytest.approx([2 * RATE * value for value in expected])
    assert seen[math.floor(middle)] > 2 * RATE * 0.55 > seen[math.ceil(middle)]


def test_without_warm_up_it_begins_at_the_peak() -> None:
    assert rates(Ragged(), WarmupCosine(warmup_frac=0.0))[0] == pytest.approx(RATE)


@pytest.mark.parametrize("item", [OneCycle(), WarmupCosine()])
def test_past_the_planned_end_the_last_rate_holds(item: Optimization) -> None:
    seen = rates(Ragged(), item, updates=PLANNED + 9)
    assert seen[PLANNED:] == pytest.approx([seen[PLANNED - 1]] * 9)


@pytest.mark.parametrize("item", [OneCycle(), WarmupCosine()])
def test_a_schedule_of_the_jobs_own_is_replaced_and_comes_back(item: Optimization) -> None:
    plain = rates(Stepped())
    assert plain[0] == pytest.approx(0.5 * RATE)
    loop = make_loop(Stepped(), item)
    before = make_loop(Stepped()).live.optimizer.param_groups[0]
    loop.run(3)
    assert rates(Stepped(), item) == pytest.approx(
        rates(Ragged(), item)
    )  # relative to the job's rate, not to the scheduled one
    loop.live.undo_all()
    group = loop.live.optimizer.param_groups[0]
    assert {key: group[key] for key in group if key != "params"} == {key: before[key] for key in before if key != "params"}
    assert isinstance(loop.live.scheduler, torch.optim.lr_scheduler.LambdaLR)


@pytest.mark.parametrize("item", [OneCycle(), WarmupCosine()])
def test_it_acts_on_the_optimizer_that_another_technique_made(item: Optimization) -> None:
    loop = make_loop(Ragged(), FusedOptimizer(), item)
    assert loop.live.scheduler is not None
    assert loop.live.scheduler.optimizer is loop.live.optimizer
    assert rates(Ragged(), FusedOptimizer(), item) == pytest.approx(rates(Ragged(), item))


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([(torch.zeros(6),)])


@pytest.mark.parametrize("item", [OneCycle(), WarmupCosine()])
def test_a_run_of_unknown_length_is_refused(item: Optimization) -> None:
    kind: type[Prepared] = type("Streamed", (Prepared,), {"train_data": lambda _: Stream()})
    with pytest.raises(JobError, match="set num_updates"):
        make_loop(kind(), item)


def test_a_rate_that_is_a_tensor_is_refused() -> None:
    class Tensors(Ragged):
        def optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
            return torch.optim.Adam(model.parameters(), lr=torch.tensor(1e-3))

    with pytest.raises(JobError, match="rates that are numbers"):
        make_loop(Tensors(), OneCycle())


def test_a_run_too_short_for_a_cycle_is_refused_and_leaves_the_optimizer_alone() -> None:
    kind: type[Ragged] = type("Short", (Ragged,), {"num_updates": 3})
    with pytest.raises(JobError, match="3 updates is too short"):
        make_loop(kind(), OneCycle())


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (OneCycle, {"max_lr_factor": 0.0}, "max_lr_factor must be greater than 0"),
        (OneCycle, {"pct_start": 1.0}, "pct_start must be between 0 and 1"),
        (WarmupCosine, {"warmup_frac": 1.0}, "warmup_frac must be at least 0 and below 1"),
        (WarmupCosine, {"final_frac": 1.5}, "final_frac must be between 0 and 1"),
        (WarmupCosine, {"peak_factor": -1.0}, "peak_factor must be greater than 0"),
    ],
)
def test_settings_out_of_range_are_refused(kind: Any, settings: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**settings)
