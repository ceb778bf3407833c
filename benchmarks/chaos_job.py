"""A job in which everything that a resumed run could get wrong shows in the weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import hasten

WIDTH = 65
"""Odd, so that two ranks hold shards of unequal size."""


class ChaosJob(hasten.Job):
    """Dropout, running statistics, random transforms, windows that do not fill, a schedule, held-out data, like blocks."""

    batch_size, accumulation, epochs, seed = 8, 3, 1000, 3
    quality = hasten.Quality(metric="loss", direction="min", margin=0.1)

    def model(self) -> nn.Module:
        """Make the model."""
        blocks = [
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Dropout(0.2)) for _ in range(2)
        ]
        return nn.Sequential(nn.Linear(32, WIDTH), *blocks, nn.Linear(WIDTH, 1))

    def train_data(self) -> Dataset[Any]:
        """Make the data."""
        x = torch.randn(205, 32, generator=torch.Generator().manual_seed(0))  # the last batch has two samples for rank 1
        return TensorDataset(x, x.sum(1, keepdim=True))

    def valid_data(self) -> Dataset[Any]:
        """Make the held-out data."""
        x = torch.randn(40, 32, generator=torch.Generator().manual_seed(1))
        return TensorDataset(x, x.sum(1, keepdim=True))

    def random_transform(self, sample: Any) -> Any:
        """Add noise."""
        return sample[0] + 0.1 * torch.randn(32), sample[1]

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Make the optimizer."""
        return torch.optim.AdamW(model.parameters(), lr=1e-3)

    def schedule(self, optimizer: torch.optim.Optimizer, num_updates: int) -> Any:
        """Make the schedule."""
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)

    def loss(self, model: nn.Module, batch: Any) -> hasten.Loss:
        """Sum the squares."""
        return hasten.Loss(nn.functional.mse_loss(model(batch[0]), batch[1], reduction="sum"), len(batch[0]))
