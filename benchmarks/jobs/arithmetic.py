"""Jobs in which one kind of arithmetic takes nearly all of an update: products, pointwise chains, dropout, denormals."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  the name everybody uses
from torch.utils.data import Dataset, TensorDataset

import hasten

NUM_FEATURES = 64
FADING_STEPS, CHANNELS = 320, 1024


def points(num: int, seed: int) -> TensorDataset:
    """Create points [num, features], and a noisy target for each [num, 1]."""
    generator = torch.Generator().manual_seed(seed)
    found = torch.randn(num, NUM_FEATURES, generator=generator)
    noise = torch.randn(num, 1, generator=generator) / 4
    return TensorDataset(found, found[:, :16].sum(dim=1, keepdim=True).sin() + noise)


class PointsJob(hasten.Job):
    """Many points for a model with one kind of arithmetic."""

    batch_size = 64
    num_updates = 100_000

    def train_data(self) -> Dataset[Any]:
        """Create the training points."""
        return points(4096, seed=0)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Create the optimizer."""
        return torch.optim.SGD(model.parameters(), lr=0.01)

    def loss(self, model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        """Compute the mean squared error."""
        found, targets = batch
        return F.mse_loss(model(found).float(), targets)


class ProductsJob(PointsJob):
    """Large matrix products."""

    batch_size = 128
    quality = hasten.Quality(metric="loss", margin=0.05)  # squared units of the target

    def model(self) -> nn.Module:
        """Create a wide network."""
        return nn.Sequential(
            nn.Linear(NUM_FEATURES, 1024), nn.ReLU(), nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 1024), nn.ReLU(),
            nn.Linear(1024, 1),
        )  # fmt: skip

    def valid_data(self) -> Dataset[Any]:
        """Create the validation points."""
        return points(256, seed=1)


class DroppedJob(PointsJob):
    """Dropout between wide layers."""

    batch_size = 256
    quality = hasten.Quality(metric="loss", margin=0.05)  # squared units of the target

    def model(self) -> nn.Module:
        """Create a network as wide and shallow as those for clicks and tables, with their usual rates."""
        return nn.Sequential(
            nn.Linear(NUM_FEATURES, 4096), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4096, 32), nn.ReLU(), nn.Dropout(0.1),
            nn.Linear(32, 1),
        )  # fmt: skip

    def valid_data(self) -> Dataset[Any]:
        """Create the validation points."""
        return points(256, seed=1)


class Pointwise(nn.Module):
    """A linear layer, then formulas as in papers, one operator after another: [batch, features] to [batch, 1]."""

    def __init__(self, width: int = 16_384) -> None:
        super().__init__()
        self.widen = nn.Linear(NUM_FEATURES, width)
        self.scale, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, found: torch.Tensor) -> torch.Tensor:
        """Apply GELU by its tanh formula, a smooth clip, and a gate."""
        x = self.widen(found)
        x = 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))
        x = x * self.scale + self.shift
        x = x / torch.sqrt(1.0 + x * x / 9.0)
        means: torch.Tensor = (x * torch.sigmoid(1.7 * x)).mean(dim=1, keepdim=True)
        return means


class PointwiseJob(PointsJob):
    """A chain of pointwise operators, each with a separate pass over memory."""

    def model(self) -> nn.Module:
        """Create the model."""
        return Pointwise()


class ValidatedPointwiseJob(PointwiseJob):
    """Short epochs, each followed by a long validation of pointwise operators."""

    def train_data(self) -> Dataset[Any]:
        """Create a few training points."""
        return points(4 * self.batch_size, seed=0)

    def valid_data(self) -> Dataset[Any]:
        """Create many validation points."""
        return points(24 * self.batch_size, seed=1)


class Echo(nn.Module):
    """Leaky filters over a click and the silence after it: clicks [batch, channels] to [batch, 1]."""

    def __init__(self) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.linspace(0.05, 0.4, CHANNELS))  # before the sigmoid
        self.head = nn.Linear(CHANNELS, 1)

    def forward(self, clicks: torch.Tensor) -> torch.Tensor:
        """Let the echo fade: after about 150 steps it is below the smallest normal float32 number."""
        decay, state, loudness = self.decay.sigmoid(), clicks, clicks
        for _ in range(FADING_STEPS):
            state = state * decay
            loudness = loudness + state
        found: torch.Tensor = self.head(loudness)
        return found


class FadingJob(hasten.Job):
    """A recurrence that fades below the smallest normal number."""

    batch_size = 16
    num_updates = 100_000

    def model(self) -> nn.Module:
        """Create the filters."""
        return Echo()

    def train_data(self) -> Dataset[Any]:
        """Create clicks [channels], and a target for each."""
        clicks = torch.randn(512, CHANNELS, generator=torch.Generator().manual_seed(0))
        return TensorDataset(clicks, clicks[:, :64].sum(dim=1, keepdim=True) / 8)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Create the optimizer."""
        return torch.optim.SGD(model.parameters(), lr=1e-4)

    def loss(self, model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        """Compute the mean squared error."""
        clicks, targets = batch
        return F.mse_loss(model(clicks), targets)
