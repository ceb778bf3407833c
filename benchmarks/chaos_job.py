"""A job in which everything that a resumed run could get wrong shows in the weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import upshift


class ChaosJob(upshift.Job):
    """Dropout, running statistics, random transforms, windows that do not fill, a schedule, held-out data."""

    batch_size, accumulation, epochs, seed = 8, 3, 1000, 3
    quality = upshift.Quality(metric="loss", direction="min", margin=0.1)

    def model(self) -> nn.Module:
        """Make the model."""
        return nn.Sequential(nn.Linear(32, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 1))

    def train_data(self) -> Dataset[Any]:
        """Make the data."""
        x = torch.randn(203, 32, generator=torch.Generator().manual_seed(0))
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

    def loss(self, model: nn.Module, batch: Any) -> upshift.Loss:
        """Sum the squares."""
        return upshift.Loss(nn.functional.mse_loss(model(batch[0]), batch[1], reduction="sum"), len(batch[0]))
