"""Four tiny jobs on which a wrong optimization causes harm: sentences, shapes, a dense fit and one in small units."""

from __future__ import annotations

import random
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  the name everybody uses
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Dataset, TensorDataset

import hasten
from benchmarks.jobs.sequences import NextTokenJob

VOCABULARY, LONGEST = 24, 40
SIZE, NUM_CLASSES = 12, 8
WARM_UP = 100


class Sentences(Dataset[torch.Tensor]):
    """Chains of tokens in two dialects: short chains count up by 1, long ones by 7, both with random errors."""

    def __init__(self, num: int, seed: int) -> None:
        chance = random.Random(seed)
        self.chains = [_chain(chance) for _ in range(num)]

    def __len__(self) -> int:
        return len(self.chains)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(self.chains[index])


def _chain(chance: random.Random) -> list[int]:
    long = chance.random() < 0.3
    length, step = (chance.randint(24, LONGEST), 7) if long else (chance.randint(5, 12), 1)
    chain = [chance.randrange(VOCABULARY)]
    while len(chain) < length + 1:
        chain.append((chain[-1] + step) % VOCABULARY if chance.random() < 0.85 else chance.randrange(VOCABULARY))
    return chain


class Block(nn.Module):
    """One transformer layer with dropout."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor, packing: hasten.Packing | None = None) -> torch.Tensor:
        """Map [batch, time, width] to the same shape; a position attends to itself and earlier positions of its sentence."""
        batch, time, width = x.shape
        query, key, value = self.query_key_value(self.norm(x)).view(batch, time, 3, 2, -1).permute(2, 0, 3, 1, 4)
        seen = hasten.packed_attention(query, key, value, packing, is_causal=True)
        x = x + self.dropout(self.project(seen.transpose(1, 2).reshape(batch, time, width)))
        mixed: torch.Tensor = x + self.dropout(self.mlp(self.norm_mlp(x)))
        return mixed


class Speaker(nn.Module):
    """A small GPT: maps tokens to logits of the next token."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, width), nn.Embedding(LONGEST, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, x: torch.Tensor, packing: hasten.Packing | None = None) -> torch.Tensor:
        """Map tokens [batch, time] to logits [batch, time, vocabulary]."""
        position = packing.positions if packing else torch.arange(x.shape[1])
        hidden = self.token(x) + self.position(position)
        for block in self.blocks:
            hidden = block(hidden, packing)
        logits: torch.Tensor = self.head(hidden)
        return logits


class SentencesJob(NextTokenJob):
    """Predict the next token, padded to the maximum sentence length."""

    longest = LONGEST
    batch_size = 16
    epochs = 40
    zero_grad_to_none = False
    quality = hasten.Quality(metric="loss", margin=0.03)  # nats per token

    def model(self) -> nn.Module:
        """Create the model."""
        return Speaker()

    def train_data(self) -> Dataset[Any]:
        """Create the training sentences; the last batch of an epoch is short."""
        return Sentences(20 * self.batch_size + 5, seed=0)

    def valid_data(self) -> Dataset[Any]:
        """Create the validation sentences."""
        return Sentences(256, seed=1)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Create the optimizer."""
        return torch.optim.AdamW(model.parameters(), lr=3e-3)


class ShapesJob(hasten.Job):
    """Classify noisy patterns at random positions; an epoch is longer than any screening."""

    batch_size = 32
    epochs = 4
    zero_grad_to_none = False
    quality = hasten.Quality(metric="loss", margin=0.05)  # nats per image

    def model(self) -> nn.Module:
        """Create the model."""
        return nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
            nn.Linear(64, NUM_CLASSES),
        )  # fmt: skip

    def train_data(self) -> Dataset[Any]:
        """Create the training images; the last batch of an epoch is short."""
        return _shapes(500 * self.batch_size + 6, seed=0)

    def valid_data(self) -> Dataset[Any]:
        """Create the validation images."""
        return _shapes(512, seed=1)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Create the optimizer: weights decay, norms and biases do not."""
        weights = [p for p in model.parameters() if p.dim() > 1]
        others = [p for p in model.parameters() if p.dim() <= 1]
        groups: list[dict[str, Any]] = [
            {"params": weights, "weight_decay": 0.1},
            {"params": others, "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=2e-3)

    def schedule(self, optimizer: torch.optim.Optimizer, num_updates: int) -> LambdaLR:
        """Warm up, then decay to zero."""
        return LambdaLR(optimizer, lambda n: min((n + 1) / WARM_UP, 1.0) * (1 - n / num_updates))

    def deterministic_transform(self, sample: Any) -> Any:
        """Shift an image to mean 0."""
        image, label = sample
        return image - image.mean(), label

    def random_transform(self, sample: Any) -> Any:
        """Shift an image and mirror it."""
        image, label = sample
        moved = image.roll((random.randint(-3, 3), random.randint(-3, 3)), (1, 2))
        return moved.flip(2) if random.random() < 0.5 else moved, label

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """Return the cross entropy."""
        images, labels = batch
        return F.cross_entropy(model(images).float(), labels)


def _shapes(num: int, seed: int) -> TensorDataset:
    patterns = torch.randn(NUM_CLASSES, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(77))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(NUM_CLASSES, (num,), generator=generator)
    return TensorDataset(patterns[labels] + torch.randn(num, 3, SIZE, SIZE, generator=generator), labels)


class DenseJob(hasten.Job):
    """A perceptron that fits a smooth function, trained by plain SGD with clipped gradients."""

    batch_size = 32
    epochs = 40
    clip_norm: ClassVar[float | None] = 0.5
    accumulation = 2
    quality = hasten.Quality(metric="loss", margin=0.05)  # squared units of the target
    unit = 1.0

    def model(self) -> nn.Module:
        """Create the model."""
        return nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))

    def train_data(self) -> Dataset[Any]:
        """Create the training points; the last window of an epoch is short."""
        return _points(20 * self.batch_size + 7, 0, self.unit)

    def valid_data(self) -> Dataset[Any]:
        """Create the validation points."""
        return _points(512, 1, self.unit)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Create the optimizer."""
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """Return the mean squared error."""
        inputs, targets = batch
        return F.mse_loss((model(inputs) * self.unit).float(), targets)


class SmallUnitsJob(DenseJob):
    """The same function in small units, so that gradients are tiny numbers."""

    clip_norm = None
    accumulation = 1
    unit = 1e-3
    quality = hasten.Quality(metric="loss", margin=5e-8)  # squared units of the target

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Create an optimizer that is independent of the unit."""
        return torch.optim.Adam(model.parameters(), lr=3e-3, eps=1e-15)


def _points(num: int, seed: int, unit: float) -> TensorDataset:
    mixing = torch.randn(16, 4, generator=torch.Generator().manual_seed(78)) / 2
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(num, 16, generator=generator)
    noise = torch.randn(num, 4, generator=generator) / 10
    return TensorDataset(inputs, ((inputs @ mixing).sin() * 1.5 + noise) * unit)
