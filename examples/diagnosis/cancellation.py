"""A job whose numbers break in bfloat16, although its matrix products would run faster.

Barometers read about 101,325 pascals, and the signal is in differences of about 100. The network subtracts the mean over the
stations with a matrix product. bfloat16 has steps of 512 at that size, so every station reads the same. The right answer of
a tuner is to refuse 16-bit arithmetic here because of the gradients, even if it is faster.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  the name everybody uses
from torch.utils.data import Dataset, TensorDataset

import hasten

NUM_STATIONS = 64
NORMAL_PA = 101_325.0
SPREAD_PA = 100.0

Batch = tuple[torch.Tensor, torch.Tensor]


def readings(num: int, seed: int) -> TensorDataset:
    """Create pressures [num, stations] in pascals, and wind speeds [num] that follow from their differences."""
    spread = torch.randn(num, NUM_STATIONS, generator=torch.Generator().manual_seed(seed))
    west, east = spread[:, : NUM_STATIONS // 2].mean(dim=1), spread[:, NUM_STATIONS // 2 :].mean(dim=1)
    return TensorDataset(NORMAL_PA + SPREAD_PA * spread, (4.0 * (west - east)).tanh())


class Wind(nn.Module):
    """Map pressures [batch, stations] to the wind speed [batch]."""

    centre: torch.Tensor

    def __init__(self, width: int = 1024) -> None:
        super().__init__()
        self.register_buffer("centre", (torch.eye(NUM_STATIONS) - 1 / NUM_STATIONS) / SPREAD_PA)
        self.layers = nn.Sequential(
            nn.Linear(NUM_STATIONS, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
        )

    def forward(self, pressure: torch.Tensor) -> torch.Tensor:
        """Subtract the mean over the stations, then apply the network."""
        wind: torch.Tensor = self.layers(pressure @ self.centre)
        return wind.squeeze(1)


class CancellationJob(hasten.Job):
    """Predict wind from small differences of large pressures."""

    batch_size = 512
    epochs = 40
    quality = hasten.Quality(metric="loss", direction="min", margin=0.02)

    def model(self) -> nn.Module:
        """Create the network."""
        return Wind()

    def train_data(self) -> Dataset[Any]:
        """Create the training readings."""
        return readings(8192, seed=0)

    def valid_data(self) -> Dataset[Any]:
        """Create the validation readings."""
        return readings(1024, seed=1)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Create the optimizer."""
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def collate(self, samples: list[Batch]) -> Batch:
        """Stack pressures and winds."""
        return torch.stack([pressure for pressure, _ in samples]), torch.stack([wind for _, wind in samples])

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Compute the mean squared error."""
        pressure, wind = batch
        return F.mse_loss(model(pressure).float(), wind)
