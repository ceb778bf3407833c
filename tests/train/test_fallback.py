"""No technique ends the run of a job: the run continues without it, with the numbers of a run without a plan."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import hasten
from hasten.core.errors import JobError
from hasten.core.live import LiveJob
from hasten.core.plan import Plan
from hasten.core.seams import Undo, append_to, replace_attribute
from hasten.optimizations.precision import Precision
from hasten.optimizations.zero_grad_to_none import ZeroGradToNone
from hasten.train.checkpoints.saver import Pace
from hasten.train.run import RunOptions, train

UPDATES = 8


class Noisy(hasten.Job):
    """A job with dropout, running statistics and random numbers of all kinds."""

    batch_size = 4
    epochs = 2

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 1))

    def train_data(self) -> Dataset[Any]:
        made = torch.Generator().manual_seed(0)
        return TensorDataset(torch.randn(16, 4, generator=made), torch.randn(16, 1, generator=made))

    def valid_data(self) -> Dataset[Any]:
        return self.train_data()

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), 0.01)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        noise = random.random() + float(np.random.rand()) if model.training else 0.0  # noqa: NPY002 - as users do
        weights = next(model.parameters())
        return nn.functional.mse_loss(model(batch[0]), batch[1]) + 1e-3 * noise * weights.sum()


class Fails(Precision):
    """A technique that changes no number, and that fails at a seam, at the `at`-th call of what it put there."""

    where = "forward"
    at = 0

    def apply(self, live: LiveJob) -> Undo:
        calls = [0]

        def may_fail(value: Any = None, *_: Any) -> Any:
            calls[0] += 1
            if calls[0] == type(self).at + 1:
                raise RuntimeError("it failed")
            return value

        @contextmanager
        def context() -> Iterator[None]:
            may_fail()
            yield

        if self.where == "apply":
            raise JobError("cannot be applied")
        if self.where == "forward":
            return append_to(live.forward_contexts, context)
        if self.where == "batch":
            return append_to(live.batch_transforms, may_fail)
        if self.where == "dataset":
            return append_to(live.pipeline.adjust, may_fail)
        if self.where == "validation":
            return append_to(live.around.validation_contexts, context)
        if self.where == "update":
            step = live.optimizer.step
            return replace_attribute(live.optimizer, "step", lambda: may_fail(step()))
        backward: Callable[..., Any] = torch.Tensor.backward
        return replace_attribute(torch.Tensor, "backward", lambda loss: backward(may_fail(loss)))


def trained(
    folder: Path, plan: Plan, job: hasten.Job | None = None, **options: Any
) -> tuple[dict[str, torch.Tensor], list[str]]:
    said: list[str] = []
    torch.manual_seed(0)
    result = train(job or Noisy(), plan, folder, options=RunOptions(say=said.append, **options))
    assert result.updates == UPDATES
    return torch.load(folder / "model.pt", weights_only=True), said


@pytest.mark.parametrize(("where", "at", "saves"), [
    ("apply", 0, False), ("dataset", 5, True), ("batch", 0, True), ("forward", 5, True), ("forward", 5, False),
    ("backward", 5, True), ("update", 0, True), ("update", 5, True), ("validation", 1, True),
])  # fmt: skip
def test_a_run_continues_without_a_technique_that_fails(
    tmp_path: Path, where: str, at: int, saves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Fails, "where", where)
    monkeypatch.setattr(Fails, "at", at)
    plain, _ = trained(tmp_path / "plain", Plan())
    plan = Plan(optimizations=(Fails(), ZeroGradToNone()))
    backward = torch.Tensor.backward
    try:
        found, said = trained(tmp_path / "run", plan, pace=Pace(every=2) if saves else None)
    finally:
        monkeypatch.setattr(torch.Tensor, "backward", backward)
    for name, value in found.items():
        assert torch.equal(value, plain[name]), name
    told = [line for line in said if "without precision" in line]
    assert len(told) == 1
    assert ("cannot be applied" if where == "apply" else "it failed") in told[0]
    kept = Plan.load(tmp_path / "run" / "hasten.toml", hasten.optimizations.catalogue()).names
    assert "precision" not in kept


class Broken(Noisy):
    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        self.calls = getattr(self, "calls", 0) + 1
        if self.calls > 3:
            raise LookupError("of the job")
        return super().loss(model, batch)


@pytest.mark.parametrize("saves", [True, False])
def test_an_error_of_the_job_reaches_the_user(tmp_path: Path, saves: bool) -> None:
    plan = Plan(optimizations=(ZeroGradToNone(),))
    with pytest.raises(LookupError, match="of the job") as raised:
        trained(tmp_path, plan, Broken(), pace=Pace(every=2) if saves else None)
    assert raised.value.__cause__ is None
    assert raised.value.__context__ is None
