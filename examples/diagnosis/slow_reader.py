"""A job that only waits for its samples, as from a remote file system; the model takes almost no time.

The right answers of a tuner: cache the samples (after the first epoch there is no more waiting), or wait in several workers.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  the name everybody uses
from torch.utils.data import Dataset

import hasten

READ_S = 0.002  # time to read one sample
NUM_FEATURES = 16

Sample = tuple[torch.Tensor, torch.Tensor]


class FarAway(Dataset[Sample]):
    """Samples that each take `READ_S` to arrive."""

    def __init__(self, num: int, seed: int) -> None:
        self.features = torch.randn(num, NUM_FEATURES, generator=torch.Generator().manual_seed(seed))
        self.targets = (self.features.sum(dim=1) > 0).long()

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> Sample:
        time.sleep(READ_S)
        return self.features[index], self.targets[index]


class SlowReaderJob(hasten.Job):
    """Classify whether the sum of a sample's features is positive."""

    batch_size = 32
    epochs = 30
    quality = hasten.Quality(metric="loss", direction="min", margin=0.02)

    def model(self) -> nn.Module:
        """Create the network."""
        return nn.Sequential(nn.Linear(NUM_FEATURES, 32), nn.ReLU(), nn.Linear(32, 2))

    def train_data(self) -> Dataset[Any]:
        """Create the training samples, a small number, so that epochs repeat."""
        return FarAway(320, seed=0)

    def valid_data(self) -> Dataset[Any]:
        """Create the validation samples."""
        return FarAway(64, seed=1)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Create the optimizer."""
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def deterministic_transform(self, sample: Sample) -> Sample:
        """Return the sample unchanged: defining this method promises that a sample may be read once and cached."""
        return sample

    def loss(self, model: nn.Module, batch: Sample) -> torch.Tensor:
        """Compute the mean cross entropy."""
        features, targets = batch
        return F.cross_entropy(model(features), targets)
