"""Small jobs for tests. Each trains in milliseconds."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import hasten
from hasten.core.job import Job

CPU = torch.device("cpu")


class Plain(Job):
    """Regression with 22 samples in batches of 4, so the last batch has 2."""

    batch_size = 4
    epochs = 2

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))

    def train_data(self) -> Dataset[Any]:
        x = torch.randn(22, 5, generator=torch.Generator().manual_seed(1))
        return TensorDataset(x, x.sum(dim=1, keepdim=True))

    def valid_data(self) -> Dataset[Any] | None:
        x = torch.randn(7, 5, generator=torch.Generator().manual_seed(2))
        return TensorDataset(x, x.sum(dim=1, keepdim=True))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor | hasten.Loss:
        x, y = batch
        return nn.functional.mse_loss(model(x), y)


class Stormy(Plain):
    """Everything that a rewind must restore: dropout, BatchNorm, AdamW's state, a schedule, random samples."""

    batch_size = 5

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=0.02)

    def schedule(self, optimizer: torch.optim.Optimizer, num_updates: int) -> LRScheduler | None:
        return LambdaLR(optimizer, lambda update: 1 / (1 + update))

    def random_transform(self, sample: Any) -> Any:
        x, y = sample
        noise = random.random() + np.random.rand() + float(torch.rand(()))  # noqa: NPY002  as user code draws
        return x * noise, y


class Masked(Stormy):
    """Random numbers in the dataset and in collate, as in masked language models."""

    def train_data(self) -> Dataset[Any]:
        return _Noisy()

    def collate(self, samples: list[Any]) -> Any:
        x, y = torch.utils.data.default_collate(samples)
        return x * (torch.rand_like(x) > 0.2), y


class CollateOnly(Stormy):
    """Random numbers in collate only."""

    def random_transform(self, sample: Any) -> Any:
        return sample

    def collate(self, samples: list[Any]) -> Any:
        x, y = torch.utils.data.default_collate(samples)
        return x * (torch.rand_like(x) > 0.2), y


class _Noisy(Dataset[Any]):
    def __len__(self) -> int:
        return 13

    def __getitem__(self, index: int) -> Any:
        x = torch.full((5,), float(index)) / 13 + torch.randn(5)
        return x, x.sum(dim=0, keepdim=True)


class Tokens(Job):
    """Sequences of different lengths with a token-weighted loss, in float64."""

    batch_size = 4
    num_samples = 18
    rate = 0.05

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 11)).double()

    def train_data(self) -> Dataset[Any]:
        generator = torch.Generator().manual_seed(3)
        tokens = torch.randint(1, 11, (self.num_samples, 9), generator=generator)
        lengths = torch.randint(1, 10, (self.num_samples, 1), generator=generator)
        return TensorDataset(tokens.masked_fill(torch.arange(9) >= lengths, 0))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=self.rate, momentum=0.9)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor | hasten.Loss:
        (tokens,) = batch
        logits = model(tokens)
        each = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten(), ignore_index=0, reduction="sum")
        return hasten.Loss(each, (tokens != 0).sum())


class Streamed(Plain):
    """An iterable dataset that draws random numbers while it is read, and a model with dropout."""

    num_updates = 8

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 1))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.01)

    def train_data(self) -> Dataset[Any]:
        return Numbers()


class Numbers(IterableDataset[Any]):
    """Ten samples in order."""

    def __iter__(self) -> Iterator[Any]:
        for number in range(10):
            x = torch.full((5,), number / 10) + torch.rand(5)
            yield x, x.sum(dim=0, keepdim=True)
