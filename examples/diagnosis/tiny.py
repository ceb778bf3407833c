"""A job with updates of about a millisecond, on which Hasten's own overhead shows most."""

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
    """Create points [num, features], and the side of a plane for each [num]."""
    features = torch.randn(num, NUM_FEATURES, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(features, (features.sum(dim=1) > 0).long())


class TinyJob(hasten.Job):
    """Classify on which side of a plane a point is."""

    batch_size = 32
    epochs = 20
    read_every = 10
    quality = hasten.Quality(metric="loss", direction="min", margin=0.05)

    def model(self) -> nn.Module:
        """Create the network."""
        return nn.Sequential(nn.Linear(NUM_FEATURES, 64), nn.ReLU(), nn.Linear(64, 2))

    def train_data(self) -> Dataset[Any]:
        """Create the training points."""
        return points(2048, seed=0)

    def valid_data(self) -> Dataset[Any]:
        """Create the validation points."""
        return points(256, seed=1)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Create the optimizer."""
        return torch.optim.AdamW(model.parameters(), lr=3e-3)

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Compute the mean cross entropy."""
        features, targets = batch
        return F.cross_entropy(model(features), targets)
