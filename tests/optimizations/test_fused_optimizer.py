"""Test that the fused optimizer has the same update rule, groups and schedule."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from hasten.core.errors import JobError
from hasten.core.job import Job
from hasten.optimizations.fused_optimizer import FusedOptimizer
from hasten.train.trace import trace_step
from tests.optimizations.contract import Attention, Prepared, make_loop, run


def job_with(make: Any) -> Job:
    kind: type[Job] = type("Other", (Prepared,), {"optimizer": lambda _, model: make(model)})
    return kind()


@pytest.mark.parametrize(
    "make",
    [
        lambda m: torch.optim.Adam(m.parameters(), lr=0.01, amsgrad=True),
        lambda m: torch.optim.AdamW(m.parameters(), lr=0.01, betas=(0.8, 0.9), weight_decay=0.2),
        lambda m: torch.optim.SGD(m.parameters(), lr=0.01, momentum=0.9, nesterov=True),
        lambda m: torch.optim.SGD(m.parameters(), lr=0.01),
        lambda m: torch.optim.Adagrad(m.parameters(), lr=0.01, initial_accumulator_value=0.1),
    ],
)
def test_it_is_the_same_rule(make: Any) -> None:
    item = FusedOptimizer()
    loop = make_loop(job_with(make), item)
    assert all(check.passed for check in item.evidence(loop.live, trace_step(loop)))
    loop.run(8)
    assert loop.losses == pytest.approx(run(job_with(make), 8), rel=1e-4)


class _Mine(torch.optim.AdamW):
    """A subclass, which may have another update rule."""


def test_a_subclass_is_refused() -> None:
    with pytest.raises(JobError, match="_Mine has no fused implementation"):
        make_loop(job_with(lambda m: _Mine(m.parameters())), FusedOptimizer())


def test_a_class_that_only_borrows_the_name_is_refused() -> None:
    kind: Any = type("AdamW", (torch.optim.AdamW,), {})
    with pytest.raises(JobError, match="AdamW has no fused implementation"):
        make_loop(job_with(lambda m: kind(m.parameters())), FusedOptimizer())


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Adagrad])
def test_an_optimizer_that_has_stepped_is_refused(kind: Any) -> None:
    loop = make_loop(job_with(lambda m: kind(m.parameters(), lr=0.01)))
    loop.run(1)
    with pytest.raises(JobError, match="already stepped"):
        loop.live.apply(FusedOptimizer())


class Grouped(Attention):
    """Two groups with different rates, under a schedule."""

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        decayed = [p for p in model.parameters() if p.dim() > 1]
        rest = [p for p in model.parameters() if p.dim() <= 1]
        return torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": rest, "lr": 0.5}], lr=0.25)

    def schedule(self, optimizer: torch.optim.Optimizer, num_updates: int) -> LRScheduler | None:
        return LambdaLR(optimizer, lambda update: 0.5**update)


def test_groups_keep_their_rates_and_the_schedule_drives_them() -> None:
    loop = make_loop(Grouped(), FusedOptimizer())
    groups = loop.live.optimizer.param_groups
    assert [(group["lr"], group["weight_decay"], group["fused"]) for group in groups] == [
        (0.25, 0.1, True),
        (0.5, 0.01, True),
    ]
    loop.run(2)
    assert [group["lr"] for group in loop.live.optimizer.param_groups] == [0.0625, 0.125]
    loop.rewind()
    loop.live.undo_all()
    assert [(group["lr"], group["fused"]) for group in loop.live.optimizer.param_groups] == [(0.25, None), (0.5, None)]
