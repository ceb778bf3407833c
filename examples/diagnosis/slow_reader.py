"""A job that only waits for its samples, as from a far file system; the model is next to nothing.

The right answers of a tuner: keep the samples (after the first epoch nothing is waited for), or wait in several workers.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  the name everybody uses
from torch.utils.data import Dataset

import hasten

READ_S = 0.002  # for one sample
NUM_FEATURES = 16

Sample = tuple[torch.Tensor, torch.Tensor]


class FarAway(Dataset[Sample]):
    """Samples that take `READ_S` each to arrive."""

    def __init__(self, num: int, seed: int) -> None:
        self.features = torch.randn(num, NUM_FEATURES, generator=torch.Generator().manual_seed(seed))
        self.targets = (self.features.sum(dim=1) > 0).long()

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> Sample:
        time.sleep(READ_S)
        return self.features[index], self.targets[index]


class SlowReaderJob(hasten.Job):
    """Tell whether the features of a sample add up to more than nothing."""

    batch_size = 32
    epochs = 30
    quality = hasten.Quality(metric="loss", direction="min", margin=0.02)

    def model(self) -> nn.Module:
        """Make the network."""
        return nn.Sequential(nn.Linear(NUM_FEATURES, 32), nn.ReLU(), nn.Linear(32, 2))

    def train_data(self) -> Dataset[Any]:
        """Make the samples to learn from, few, so that epochs repeat."""
        return FarAway(320, seed=0)

    def valid_data(self) -> Dataset[Any]:
        """Make the held-out samples."""
        return FarAway(64, seed=1)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Make the optimizer."""
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def deterministic_transform(self, sample: Sample) -> Sample:
        """Change nothing: writing this method is the promise that a sample may be read once and kept."""
        return sample

    def loss(self, model: nn.Module, batch: Sample) -> torch.Tensor:
        """Mean cross entropy."""
        features, targets = batch
        return F.cross_entropy(model(features), targets)
