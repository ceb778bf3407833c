"""A job that no technique can speed up: it mostly sorts long rows of float32 that are already in memory.

There are no matrix products or convolutions, nothing to read, decode or pad, only two parameters, and the loss is read
rarely. The right answer of a tuner is to change nothing and to say so.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import hasten

ROW = 8192

Batch = list[torch.Tensor]


def gauges(num: int, seed: int) -> TensorDataset:
    """Create rows of a gauge's readings and, in another order, of the true values: each [num, ROW]."""
    generator = torch.Generator().manual_seed(seed)
    read, true = (torch.randn(num, ROW, generator=generator) for _ in range(2))
    return TensorDataset(read, 1.5 * true + 0.5)


class Calibration(nn.Module):
    """A gain and an offset."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(()))
        self.offset = nn.Parameter(torch.zeros(()))

    def forward(self, read: torch.Tensor) -> torch.Tensor:
        """Correct readings of any shape."""
        return self.gain * read + self.offset


class TightJob(hasten.Job):
    """Calibrate a gauge by matching the distribution of its readings to the true one."""

    batch_size = 32
    epochs = 50
    read_every = 50
    quality = hasten.Quality(metric="loss", direction="min", margin=0.05)

    def model(self) -> nn.Module:
        """Create the calibration."""
        return Calibration()

    def train_data(self) -> Dataset[Any]:
        """Create the training readings."""
        return gauges(512, seed=0)

    def valid_data(self) -> Dataset[Any]:
        """Create the validation readings."""
        return gauges(64, seed=1)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Create the optimizer."""
        return torch.optim.SGD(model.parameters(), lr=0.05)

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Compute the squared Wasserstein distance: compare the smallest with the smallest, and so on."""
        read, true = batch
        corrected: torch.Tensor = model(read)
        return (corrected.sort(dim=1).values - true.sort(dim=1).values).square().mean()
