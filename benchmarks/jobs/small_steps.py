"""Jobs with updates so small that work around the arithmetic matters: reads, threads, garbage, a short last batch."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  the name everybody uses
from torch.utils.data import Dataset, TensorDataset

import hasten

SYMBOLS, LARGEST, DEEPEST = 26, 250, 12


class OnlineJob(hasten.Job):
    """A linear model with one sample per update that reads every loss."""

    batch_size = 1
    num_updates = 100_000

    def model(self) -> nn.Module:
        """Create the model."""
        return nn.Linear(8, 1)

    def train_data(self) -> Dataset[Any]:
        """Create points [8], and a target for each."""
        points = torch.randn(4096, 8, generator=torch.Generator().manual_seed(0))
        return TensorDataset(points, points.sum(dim=1, keepdim=True))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Create the optimizer."""
        return torch.optim.SGD(model.parameters(), lr=0.01)

    def loss(self, model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        """Compute the mean squared error."""
        points, targets = batch
        return F.mse_loss(model(points), targets)


class Chain(nn.Module):
    """A chain of gains and offsets: [batch, width] to the same shape; every operator is short."""

    def __init__(self, width: int, num: int) -> None:
        super().__init__()
        self.gains = nn.ParameterList(1 + torch.randn(width) / 10 for _ in range(num))
        self.offsets = nn.ParameterList(torch.randn(width) / 10 for _ in range(num))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply them all."""
        for gain, offset in zip(self.gains, self.offsets, strict=True):
            x = F.hardtanh(x * gain + offset, -3.0, 3.0)
        return x


class SmallOperatorsJob(OnlineJob):
    """Operators just large enough to be split between threads."""

    batch_size = 40

    def model(self) -> nn.Module:
        """Create the model: tensors of 40,960 numbers; PyTorch gives each thread at least 32,768."""
        return nn.Sequential(nn.Linear(8, 1024), Chain(1024, num=30), nn.Linear(1024, 1))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Create an optimizer with a small rate, suited to a long chain."""
        return torch.optim.SGD(model.parameters(), lr=1e-4)


class LastBatchJob(OnlineJob):
    """An epoch of four whole batches and one of four samples."""

    batch_size = 64
    quality = hasten.Quality(metric="loss", margin=0.05)  # squared units of the target

    def model(self) -> nn.Module:
        """Create a deep, narrow network, whose update takes as long for few samples as for many."""
        return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), *(Residual(16) for _ in range(12)), nn.Linear(16, 1))

    def train_data(self) -> Dataset[Any]:
        """Create points [8], and a target for each."""
        return _points(4 * self.batch_size + 4, seed=0)

    def valid_data(self) -> Dataset[Any]:
        """Create the validation points."""
        return _points(256, seed=1)


class AccumulatedJob(LastBatchJob):
    """Updates of eight micro-batches, each of four samples."""

    batch_size = 4
    accumulation = 8

    def train_data(self) -> Dataset[Any]:
        """Create the training points."""
        return _points(64 * self.batch_size, seed=0)


class ValidatedJob(LastBatchJob):
    """Short epochs, each followed by a validation of many small batches."""

    batch_size = 16

    def train_data(self) -> Dataset[Any]:
        """Create a few training points."""
        return _points(16 * self.batch_size, seed=0)

    def valid_data(self) -> Dataset[Any]:
        """Create many validation points."""
        return _points(128 * self.batch_size, seed=1)


class Residual(nn.Module):
    """A small layer with a skip connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [batch, width] to the same shape."""
        mixed: torch.Tensor = x + self.layer(x).tanh() / 4
        return mixed


def _points(num: int, seed: int) -> TensorDataset:
    points = torch.randn(num, 8, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(points, points[:, :4].sum(dim=1, keepdim=True).tanh())


class Node:
    """A node of a parsed expression: its symbol, its depth, and its children."""

    def __init__(self, symbol: int, depth: int) -> None:
        self.symbol, self.depth = symbol, depth
        self.parts: list[Node] = []


def parse(expression: str) -> Node:
    """Parse `a(b(c)d)`, in which each letter is a symbol and parentheses contain its children."""
    root = Node(0, 0)
    open_nodes, last = [root], root
    for letter in expression:
        if letter == "(":
            open_nodes.append(last)
        elif letter == ")":
            open_nodes.pop()
        else:
            last = Node(ord(letter) - ord("a"), len(open_nodes))
            open_nodes[-1].parts.append(last)
    return root


class Expressions(Dataset[tuple[str, float]]):
    """Random expressions as text, and for each the fraction of symbols from the first half of the alphabet."""

    def __init__(self, num: int) -> None:
        chance = random.Random(0)
        self.texts = [_expression(chance) for _ in range(num)]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> tuple[str, float]:
        letters = [letter for letter in self.texts[index] if letter.isalpha()]
        return self.texts[index], sum(letter < "n" for letter in letters) / len(letters)


def _expression(chance: random.Random) -> str:
    text, depth, first = [], 0, chance.random()
    for _ in range(LARGEST):
        text.append(chr(ord("a") + min(int(chance.random() ** (0.5 + first) * SYMBOLS), SYMBOLS - 1)))
        turn = chance.random()
        if turn < 0.3 and depth < DEEPEST - 2:
            text.append("(")
            depth += 1
        elif turn > 0.75 and depth:
            text.append(")")
            depth -= 1
    return "".join(text) + ")" * depth


class TreesJob(hasten.Job):
    """Texts parsed into trees of thousands of Python objects in every step."""

    batch_size = 32
    num_updates = 100_000

    def model(self) -> nn.Module:
        """Create the network."""
        return nn.Sequential(nn.Linear(DEEPEST * SYMBOLS, 32), nn.ReLU(), nn.Linear(32, 1))

    def train_data(self) -> Dataset[Any]:
        """Create the expressions."""
        return Expressions(1024)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Create the optimizer."""
        return torch.optim.SGD(model.parameters(), lr=0.01)

    def collate(self, samples: list[tuple[str, float]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Parse a batch, and count the symbols at each depth: [batch, DEEPEST * SYMBOLS]."""
        trees = [parse(text) for text, _ in samples]
        counts = [[0.0] * (DEEPEST * SYMBOLS) for _ in trees]
        for row, tree in zip(counts, trees, strict=True):
            waiting = [*tree.parts]
            while waiting:
                node = waiting.pop()
                row[(node.depth - 1) * SYMBOLS + node.symbol] += 1.0
                waiting += node.parts
        return torch.tensor(counts) / 10, torch.tensor([[target] for _, target in samples])

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """Compute the mean squared error."""
        counts, targets = batch
        return F.mse_loss(model(counts), targets)
