"""Jobs judged by how soon they learn, not by the time of an update: their whole length counts."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  the name everybody uses
from torch.utils.data import Dataset, TensorDataset

import hasten

NUM_FEATURES = 16


def noisy(num: int, seed: int) -> TensorDataset:
    """Create points [num, features], and a noisy target for each [num, 1]."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(num, NUM_FEATURES, generator=generator)
    noise = torch.randn(num, 1, generator=generator) / 2
    return TensorDataset(points, 2 * points[:, :4].sum(dim=1, keepdim=True).tanh() + noise)


class ConstantRateJob(hasten.Job):
    """A run at one constant, low learning rate."""

    batch_size = 32
    num_updates = 800
    quality = hasten.Quality(metric="loss", margin=0.05)  # squared units of the target

    def model(self) -> nn.Module:
        """Create a small network."""
        return nn.Sequential(nn.Linear(NUM_FEATURES, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))

    def train_data(self) -> Dataset[Any]:
        """Create the training points."""
        return noisy(4096, seed=0)

    def valid_data(self) -> Dataset[Any]:
        """Create the validation points."""
        return noisy(512, seed=1)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Create the optimizer."""
        return torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)

    def loss(self, model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        """Compute the mean squared error."""
        points, targets = batch
        return F.mse_loss(model(points), targets)


class ManyUpdatesJob(ConstantRateJob):
    """Many updates of eight samples, each about as slow as one of many samples."""

    batch_size = 8
    num_updates = 1600

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Create the optimizer."""
        return torch.optim.SGD(model.parameters(), lr=0.0005, momentum=0.9)
