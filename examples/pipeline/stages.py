"""One job for all stages: predict the next byte of the text that a stage names, from the weights that it starts from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  the name everybody uses
from torch.utils.data import Dataset, TensorDataset

import hasten

LENGTH = 96


class ByteModel(nn.Module):
    """A recurrent network: maps bytes [batch, time] to logits of the next byte [batch, time, 256]."""

    def __init__(self, width: int = 160) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, 64)
        self.layers = nn.GRU(64, width, batch_first=True)
        self.head = nn.Linear(width, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Predict."""
        logits: torch.Tensor = self.head(self.layers(self.embed(x))[0])
        return logits


def rows(path: Path) -> Dataset[Any]:
    """Return a text as rows of bytes, each one longer than what is predicted."""
    text = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8).long()
    count = (len(text) - 1) // LENGTH
    starts = torch.arange(count)[:, None] * LENGTH
    return TensorDataset(text[starts + torch.arange(LENGTH + 1)])


class Stage(hasten.Job):
    """Train on `$TEXT`, from the weights of `$START`, and measure on the text held out of it."""

    batch_size, epochs, clip_norm = 16, 2, 1.0
    quality = hasten.Quality(metric="loss", direction="min", margin=0.05)

    def model(self) -> nn.Module:
        model = ByteModel()
        if start := os.environ.get("START"):
            model.load_state_dict(torch.load(start, weights_only=True))
        return model

    def train_data(self) -> Dataset[Any]:
        return rows(Path(os.environ["TEXT"]))

    def valid_data(self) -> Dataset[Any]:
        text = Path(os.environ["TEXT"])
        return rows(text.with_name(f"{text.stem}-held-out.txt"))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=3e-3 if "START" not in os.environ else 1e-3)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        (text,) = batch
        return F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
