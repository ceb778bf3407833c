"""Jobs dominated by parameters: many small tensors for the optimizer, large states in memory, frequent checkpoints."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  the name everybody uses
from torch.utils.data import Dataset, TensorDataset

import hasten

NUM_COLUMNS, WIDTH = 400, 8


class Columns(nn.Module):
    """Map table rows [batch, columns] to one number each [batch]; every column has its own small parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.columns = nn.ParameterList(torch.randn(WIDTH) / NUM_COLUMNS**0.5 for _ in range(NUM_COLUMNS))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Sum the columns' outputs, then apply a small head."""
        found: torch.Tensor = self.head((rows @ torch.stack(tuple(self.columns))).tanh())
        return found.squeeze(1)


def table(num: int, seed: int) -> TensorDataset:
    """Create rows [num, columns], and a noisy target for each [num]."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(num, NUM_COLUMNS, generator=generator)
    noise = torch.randn(num, generator=generator) / 10
    return TensorDataset(rows, rows[:, : NUM_COLUMNS // 2].mean(dim=1) * 10 + noise)


class ColumnsJob(hasten.Job):
    """A table model with 400 small parameter tensors, with AdamW."""

    batch_size = 8
    num_updates = 100_000

    def model(self) -> nn.Module:
        """Create the model."""
        return Columns()

    def train_data(self) -> Dataset[Any]:
        """Create the training rows."""
        return table(1024, seed=0)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Create the optimizer."""
        return torch.optim.AdamW(model.parameters(), lr=1e-3)

    def loss(self, model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        """Compute the mean squared error."""
        rows, targets = batch
        return F.mse_loss(model(rows).float(), targets)


class ZeroedColumnsJob(ColumnsJob):
    """A table model with 400 small gradients, all filled with zeros after each update."""

    zero_grad_to_none: ClassVar[bool] = False

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Create the simplest optimizer, so that filling with zeros matters."""
        return torch.optim.SGD(model.parameters(), lr=0.01)


class LargeStatesJob(ColumnsJob):
    """Large layers whose AdamW states take twice their memory."""

    quality = hasten.Quality(metric="loss", margin=0.05)  # squared units of the target

    def model(self) -> nn.Module:
        """Create a network of fifteen million parameters."""
        return nn.Sequential(
            nn.Linear(NUM_COLUMNS, 16_384), nn.ReLU(), nn.Linear(16_384, 512), nn.ReLU(), nn.Linear(512, 1), nn.Flatten(0)
        )

    def valid_data(self) -> Dataset[Any]:
        """Create the validation rows."""
        return table(64, seed=1)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Create the optimizer."""
        return torch.optim.AdamW(model.parameters(), lr=1e-4)


class CheckpointedJob(ColumnsJob):
    """Short epochs of a large model, each with a checkpoint."""

    def model(self) -> nn.Module:
        """Create the same network."""
        return LargeStatesJob().model()

    def train_data(self) -> Dataset[Any]:
        """Create a few rows."""
        return table(16 * self.batch_size, seed=0)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Create the fastest optimizer."""
        return torch.optim.SGD(model.parameters(), lr=0.01)
