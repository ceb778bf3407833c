"""Jobs in which convolutions take nearly all of an update: over images, and over volumes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  the name everybody uses
from torch.utils.data import Dataset, TensorDataset

import hasten

NUM_CLASSES = 8
PICTURE, VOLUME = (3, 64, 64), (1, 24, 24, 24)

Batch = list[torch.Tensor]


def patterns(shape: tuple[int, ...], num: int) -> TensorDataset:
    """Create noisy copies of a few random patterns: samples [num, *shape], and the pattern's index for each [num]."""
    known = torch.randn(NUM_CLASSES, *shape, generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(2)
    labels = torch.randint(NUM_CLASSES, (num,), generator=generator)
    return TensorDataset(known[labels] + 2.0 * torch.randn(num, *shape, generator=generator), labels)


class PicturesJob(hasten.Job):
    """2-d convolutions over images."""

    batch_size = 16
    num_updates = 100_000

    def model(self) -> nn.Module:
        """Create a network of four convolutions."""
        return nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
            nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
            nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(1024, NUM_CLASSES),
        )  # fmt: skip

    def train_data(self) -> Dataset[Any]:
        """Create the images: [3, 64, 64] each."""
        return patterns(PICTURE, 512)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Create the optimizer."""
        return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Compute the mean cross entropy."""
        samples, labels = batch
        return F.cross_entropy(model(samples).float(), labels)


class VolumesJob(PicturesJob):
    """3-d convolutions over volumes."""

    batch_size = 4

    def model(self) -> nn.Module:
        """Create a network of three convolutions."""
        return nn.Sequential(
            nn.Conv3d(1, 16, 3, padding=1, bias=False), nn.BatchNorm3d(16), nn.ReLU(),
            nn.Conv3d(16, 32, 3, padding=1, bias=False), nn.BatchNorm3d(32), nn.ReLU(), nn.MaxPool3d(2),
            nn.Conv3d(32, 64, 3, padding=1, bias=False), nn.BatchNorm3d(64), nn.ReLU(),
            nn.AdaptiveAvgPool3d(2), nn.Flatten(), nn.Linear(512, NUM_CLASSES),
        )  # fmt: skip

    def train_data(self) -> Dataset[Any]:
        """Create the volumes: [1, 24, 24, 24] each."""
        return patterns(VOLUME, 128)
