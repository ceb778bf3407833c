"""Sparse, missing, complex and empty gradients are trained, clipped, sampled and summed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import hasten
from hasten.train.build import build
from hasten.train.loop import Loop, clip_gradients
from hasten.train.ranks import Ranks
from hasten.tune.trials.gradients import StepSampler, gradient_batches, gradient_sample, save_weights, update_sample


class Net(nn.Module):
    """A sparse table, a dense layer, a complex parameter, one that is never used and one without values."""

    def __init__(self, *, sparse: bool = True) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(20, 4, sparse=sparse)
        self.dense = nn.Linear(4, 1)
        self.phase = nn.Parameter(torch.tensor([1 + 1j, 0.5 - 1j]))
        self.unused = nn.Parameter(torch.ones(3))
        self.empty = nn.Parameter(torch.ones(0))

    def forward(self, items: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.dense(self.table(items)).squeeze(1) + self.phase.abs().sum()
        return found


class Recommender(hasten.Job):
    batch_size = 4
    clip_norm = 0.05

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        return Net()

    def train_data(self) -> Dataset[Any]:
        made = torch.Generator().manual_seed(0)
        return TensorDataset(torch.randint(20, (16, 3), generator=made), torch.rand(16, generator=made))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), 0.1)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return nn.functional.mse_loss(model(batch[0]), batch[1])


class Rare(Recommender):
    """Trains the table alone, with the optimizer for sparse gradients."""

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SparseAdam(list(model.get_submodule("table").parameters()))


@pytest.mark.parametrize("kind", [Recommender, Rare])
def test_a_job_trains_and_is_sampled(kind: type[hasten.Job], tmp_path: Any) -> None:
    loop = Loop(build(kind()))
    loop.run(3)
    assert loop.losses[-1] < loop.losses[0]
    rows = gradient_sample(loop.live, gradient_batches(loop, 2))
    assert rows.shape[1] == sum(p.numel() for p in loop.live.model.parameters()) + 2  # a complex number counts twice
    assert np.isfinite(rows).all()
    assert np.abs(rows).sum() > 0
    moved = update_sample(loop).moved
    assert max(moved[0]) > 0
    assert np.isfinite(moved).all()
    save_weights(loop.live, tmp_path / "weights.pt")


def test_steps_of_a_script_are_sampled() -> None:
    model = Net()
    live: Any = SimpleNamespace(model=model, optimizer=torch.optim.SGD(model.parameters(), 0.1))
    sampler = StepSampler(live)
    for _ in range(2):
        live.optimizer.zero_grad()
        model(torch.tensor([[1, 2]])).sum().backward()
        sampler.before()
        live.optimizer.step()
        sampler.after()
    assert sampler.rows.shape == (2, 92)
    assert np.count_nonzero(sampler.rows[0][7:87]) == 8  # after `phase` and `unused`
    assert np.isfinite(sampler.updates()["moved"]).all()


def test_sparse_gradients_are_clipped_as_dense_ones_are() -> None:
    norms, gradients = [], []
    for sparse in (True, False):
        torch.manual_seed(0)
        model = Net(sparse=sparse)
        model(torch.tensor([[1, 2], [2, 3]])).sum().backward()
        clip_gradients(list(model.parameters()), 0.1)
        found = [p.grad.to_dense() for p in model.parameters() if p.grad is not None]
        norms.append(float(nn.utils.get_total_norm(found)))
        gradients.append(found)
    assert norms == pytest.approx([0.1, 0.1], rel=1e-3)
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_ranks_sum_gradients_of_all_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.distributed.all_reduce", lambda values: values.mul_(2))  # the other rank has the same ones
    model = Net()
    model(torch.tensor([[1, 2]])).sum().backward()
    before = {name: p.grad.to_dense() for name, p in model.named_parameters() if p.grad is not None}
    Ranks(0, 2).sum_gradients(model.parameters())
    assert model.unused.grad is None
    assert model.table.weight.grad is not None
    assert model.table.weight.grad.is_sparse
    for name, parameter in model.named_parameters():
        if name in before:
            assert parameter.grad is not None
            assert torch.equal(parameter.grad.to_dense(), 2 * before[name])
