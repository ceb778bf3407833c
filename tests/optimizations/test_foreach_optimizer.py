"""Test that the foreach implementation of each optimizer class has the same update rule."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

from hasten.core.errors import JobError
from hasten.core.optimization import clash
from hasten.optimizations.foreach_optimizer import WITH_FOREACH, ForeachOptimizer
from hasten.optimizations.fused_optimizer import FusedOptimizer
from hasten.train.trace import trace_step
from tests.optimizations.contract import make_loop, run
from tests.optimizations.test_fused_optimizer import Grouped, job_with


def test_the_list_is_that_of_torch() -> None:
    kinds = {name: kind for name, kind in vars(torch.optim).items() if isinstance(kind, type)}
    having = {name for name, kind in kinds.items() if "foreach" in inspect.signature(kind).parameters}
    assert set(WITH_FOREACH) == having
    assert all(WITH_FOREACH[name] is kinds[name] for name in WITH_FOREACH)


@pytest.mark.parametrize("name", sorted(WITH_FOREACH))
def test_it_is_the_same_rule(name: str) -> None:
    def make(model: Any) -> torch.optim.Optimizer:
        kind: Any = WITH_FOREACH[name]
        return kind(model.parameters(), lr=0.01)  # type: ignore[no-any-return]

    item = ForeachOptimizer()
    plain = make_loop(job_with(make))
    assert not any(check.passed for check in item.evidence(plain.live, trace_step(plain)))
    loop = make_loop(job_with(make), item)
    assert all(check.passed for check in item.evidence(loop.live, trace_step(loop)))
    loop.run(8)
    assert loop.losses == pytest.approx(run(job_with(make), 8), rel=1e-4)


def test_groups_keep_their_rates() -> None:
    live = make_loop(Grouped(), ForeachOptimizer()).live
    rates = [(group["lr"], group["weight_decay"], group["foreach"]) for group in live.optimizer.param_groups]
    assert rates == [(0.25, 0.1, True), (0.5, 0.01, True)]


def test_a_class_without_the_form_is_refused() -> None:
    with pytest.raises(JobError, match="LBFGS has no foreach implementation: remove foreach_optimizer"):
        make_loop(job_with(lambda m: torch.optim.LBFGS(m.parameters())), ForeachOptimizer())


def test_an_optimizer_that_has_stepped_is_refused() -> None:
    loop = make_loop(job_with(lambda m: torch.optim.Adam(m.parameters())))
    loop.run(1)
    with pytest.raises(JobError, match="foreach_optimizer must be applied before the first update"):
        loop.live.apply(ForeachOptimizer())


def test_it_excludes_the_fused_one() -> None:
    assert "exclude each other" in clash(ForeachOptimizer(), FusedOptimizer())
