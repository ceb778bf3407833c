"""A job whose weights reveal every error that resuming a run can make."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import hasten

WIDTH = 65
"""An odd number, so that two ranks have shards of unequal size."""


class ChaosJob(hasten.Job):
    """Combine dropout, running statistics, random transforms, partial windows, a schedule and validation."""

    batch_size, accumulation, epochs, seed = 8, 3, 1000, 3
    quality = hasten.Quality(metric="loss", direction="min", margin=0.1)

    def model(self) -> nn.Module:
        """Create the model."""
        blocks = [
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Dropout(0.2)) for _ in range(2)
        ]
        return nn.Sequential(nn.Linear(32, WIDTH), *blocks, nn.Linear(WIDTH, 1))

    def train_data(self) -> Dataset[Any]:
        """Create the data."""
        x = torch.randn(205, 32, generator=torch.Generator().manual_seed(0))  # the last batch has two samples for rank 1
        return TensorDataset(x, x.sum(1, keepdim=True))

    def valid_data(self) -> Dataset[Any]:
        """Create the validation data."""
        x = torch.randn(40, 32, generator=torch.Generator().manual_seed(1))
        return TensorDataset(x, x.sum(1, keepdim=True))

    def random_transform(self, sample: Any) -> Any:
        """Add noise."""
        return sample[0] + 0.1 * torch.randn(32), sample[1]

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Create the optimizer."""
        return torch.optim.AdamW(model.parameters(), lr=1e-3)

    def schedule(self, optimizer: torch.optim.Optimizer, num_updates: int) -> Any:
        """Create the schedule."""
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)

    def loss(self, model: nn.Module, batch: Any) -> hasten.Loss:
        """Sum the squares."""
        return hasten.Loss(nn.functional.mse_loss(model(batch[0]), batch[1], reduction="sum"), len(batch[0]))
