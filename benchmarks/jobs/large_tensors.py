"""Memory jobs: large tensors allocated and freed in every step, and a deep model that keeps them until the backward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  the name everybody uses
from torch.utils.data import Dataset, TensorDataset

import hasten

SECONDS_OF_SOUND, RATE = 32, 48_000
ROWS, WIDTH = 128, 64


class Shaper(nn.Module):
    """Repeated gain, offset and nonlinear curve: waves [batch, time] to waves."""

    def __init__(self, num: int) -> None:
        super().__init__()
        self.gains, self.offsets = nn.Parameter(torch.ones(num)), nn.Parameter(torch.zeros(num))

    def forward(self, waves: torch.Tensor) -> torch.Tensor:
        """Shape the waves; every operator allocates a tensor as large as the batch."""
        for gain, offset in zip(self.gains, self.offsets, strict=True):
            waves = F.leaky_relu(waves * gain + offset)
        return waves


class WavesJob(hasten.Job):
    """Tensors of 35 MiB allocated and freed by every operator."""

    batch_size = 6
    num_updates = 100_000

    def model(self) -> nn.Module:
        """Create the model."""
        return Shaper(2)

    def train_data(self) -> Dataset[Any]:
        """Create recordings [time], and a target loudness for each."""
        generator = torch.Generator().manual_seed(0)
        loud = torch.rand(12, generator=generator) + 0.5
        return TensorDataset(torch.randn(12, SECONDS_OF_SOUND * RATE, generator=generator) * loud[:, None], loud / 2)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Create the optimizer."""
        return torch.optim.SGD(model.parameters(), lr=0.01)

    def loss(self, model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        """Compute the squared difference of loudness."""
        waves, loud = batch
        return F.mse_loss(model(waves).square().mean(dim=1), loud.square())


class RecordingsJob(WavesJob):
    """Batches of 35 MiB, stacked again for each update."""

    def model(self) -> nn.Module:
        """Create a model that is fast compared with the stacking."""
        return nn.Sequential(nn.AvgPool1d(2048), nn.Linear(SECONDS_OF_SOUND * RATE // 2048, 1), nn.Flatten(0))

    def loss(self, model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        """Compute the squared difference of loudness."""
        waves, loud = batch
        return F.mse_loss(model(waves), loud)


class Block(nn.Module):
    """A norm, two wide layers and a skip connection: [batch, rows, width] to the same shape."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Mix the features of each row."""
        mixed: torch.Tensor = x + self.narrow(F.gelu(self.wide(self.norm(x))))
        return mixed


class Deep(nn.Module):
    """A stack of blocks, then one number per sample: [batch, rows, width] to [batch]."""

    def __init__(self, num: int = 10) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(WIDTH) for _ in range(num))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run all blocks; the backward pass needs the output of each."""
        for block in self.blocks:
            x = block(x)
        found: torch.Tensor = self.head(x.mean(dim=1))
        return found.squeeze(1)


class DeepJob(hasten.Job):
    """A deep network that keeps hundreds of MiB for its backward pass."""

    batch_size = 96
    num_updates = 100_000

    def model(self) -> nn.Module:
        """Create the network."""
        return Deep()

    def train_data(self) -> Dataset[Any]:
        """Create samples [rows, width], and a target for each."""
        generator = torch.Generator().manual_seed(0)
        samples = torch.randn(4 * self.batch_size, ROWS, WIDTH, generator=generator)
        return TensorDataset(samples, samples[:, :, : WIDTH // 2].mean(dim=(1, 2)) * 50)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Create the optimizer."""
        return torch.optim.AdamW(model.parameters(), lr=1e-3)

    def loss(self, model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        """Compute the mean squared error."""
        samples, targets = batch
        return F.mse_loss(model(samples).float(), targets)
