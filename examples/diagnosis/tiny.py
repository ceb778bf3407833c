"""A job of about a millisecond an update, on which our own cost shows most."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  the name everybody uses
from torch.utils.data import Dataset, TensorDataset

import hasten

NUM_FEATURES = 16

Batch = list[torch.Tensor]


def points(num: int, seed: int) -> TensorDataset:
    """Make points [num, features] and on which side of a plane they lie [num]."""
    features = torch.randn(num, NUM_FEATURES, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(features, (features.sum(dim=1) > 0).long())


class TinyJob(hasten.Job):
    """Tell on which side of a plane a point lies."""

    batch_size = 32
    epochs = 20
    read_every = 10
    quality = hasten.Quality(metric="loss", direction="min", margin=0.05)

    def model(self) -> nn.Module:
        """Make the network."""
        return nn.Sequential(nn.Linear(NUM_FEATURES, 64), nn.ReLU(), nn.Linear(64, 2))

    def train_data(self) -> Dataset[Any]:
        """Make the points to learn from."""
        return points(2048, seed=0)

    def valid_data(self) -> Dataset[Any]:
        """Make the held-out points."""
        return points(256, seed=1)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Make the optimizer."""
        return torch.optim.AdamW(model.parameters(), lr=3e-3)

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Mean cross entropy."""
        features, targets = batch
        return F.cross_entropy(model(features), targets)
