"""A byte-level GPT on the English text included in every Python (the topics of `help()`), written the naive way.

Typical inefficiencies: every document is padded to the maximum length, although most are short; everything is computed in
float32; and the host reads the loss at every update.

    hasten tune examples/text.py:TextJob --budget 5m --out hasten-out
"""

from __future__ import annotations

import math
import re
from pydoc_data.topics import topics
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  the name everybody uses
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Dataset

import hasten

MIN_BYTES = 64  # shorter paragraphs are headings and fragments of grammar
MAX_LENGTH = 1024  # positions; longer documents are truncated
VOCABULARY = 256  # bytes
NUM_HELD_OUT = 100  # documents
NOTHING = -100  # the target at padding, which cross entropy ignores
WARM_UP = 10  # updates

Batch = tuple[torch.Tensor, torch.Tensor, hasten.Packing | None]


def documents() -> list[bytes]:
    """Read the paragraphs, each once, in a fixed random order."""
    paragraphs = (part.strip("\n").encode() for topic in topics.values() for part in re.split(r"\n\s*\n", topic))
    unique = [paragraph for paragraph in dict.fromkeys(paragraphs) if len(paragraph) >= MIN_BYTES]
    order = torch.randperm(len(unique), generator=torch.Generator().manual_seed(0))
    return [unique[index] for index in order.tolist()]


class Block(nn.Module):
    """One pre-norm transformer layer."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm_attention = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor, packing: hasten.Packing | None = None) -> torch.Tensor:
        """Map [batch, time, width] to the same shape; a position attends to itself and earlier positions of its document."""
        batch, time, width = x.shape
        heads = self.query_key_value(self.norm_attention(x)).view(batch, time, 3, self.num_heads, -1)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        attended = hasten.packed_attention(query, key, value, packing, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).reshape(batch, time, width))
        mixed: torch.Tensor = x + self.mlp(self.norm_mlp(x))
        return mixed


class ByteGPT(nn.Module):
    """A small GPT: maps bytes to logits of the next byte."""

    def __init__(self, width: int = 96, num_layers: int = 2, num_heads: int = 3) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, width)
        self.position = nn.Embedding(MAX_LENGTH, width)
        self.blocks = nn.ModuleList(Block(width, num_heads) for _ in range(num_layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, x: torch.Tensor, packing: hasten.Packing | None = None) -> torch.Tensor:
        """Map bytes [batch, time] to logits [batch, time, 256]."""
        position = packing.positions if packing else torch.arange(x.shape[1], device=x.device)
        hidden = self.token(x) + self.position(position)
        for block in self.blocks:
            hidden = block(hidden, packing)
        logits: torch.Tensor = self.head(self.norm(hidden))
        return logits


class TextJob(hasten.Job):
    """Predict the next byte of a paragraph."""

    batch_size = 8
    epochs = 10
    clip_norm = 1.0
    read_every = 1
    zero_grad_to_none = False
    quality = hasten.Quality(metric="loss", direction="min", margin=0.05)  # nats per byte

    def model(self) -> nn.Module:
        """Create the model."""
        return ByteGPT()

    def train_data(self) -> Dataset[Any]:
        """Create the training documents."""
        return cast("Dataset[Any]", documents()[NUM_HELD_OUT:])  # a list is a map-style dataset

    def valid_data(self) -> Dataset[Any]:
        """Create the validation documents."""
        return cast("Dataset[Any]", documents()[:NUM_HELD_OUT])

    def deterministic_transform(self, sample: bytes) -> torch.Tensor:
        """Convert a document to the values of its bytes, one more than its number of predicted positions."""
        return torch.tensor(list(sample[: MAX_LENGTH + 1]))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Create the optimizer."""
        return torch.optim.AdamW(model.parameters(), lr=1.2e-3, betas=(0.9, 0.95))

    def schedule(self, optimizer: torch.optim.Optimizer, num_updates: int) -> LambdaLR:
        """Warm up, then keep the rate constant."""
        return LambdaLR(optimizer, lambda update: min(1.0, (update + 1) / WARM_UP))

    def length(self, sample: torch.Tensor) -> int:
        """Count the positions of a document; the rest of its row is padding."""
        return len(sample) - 1

    def collate(self, samples: list[torch.Tensor]) -> Batch:
        """Pad every document to the maximum length: inputs and targets, each [batch, MAX_LENGTH]."""
        inputs = torch.zeros(len(samples), MAX_LENGTH, dtype=torch.long)
        targets = torch.full((len(samples), MAX_LENGTH), NOTHING)
        for row, sample in enumerate(samples):
            inputs[row, : len(sample) - 1] = sample[:-1]
            targets[row, : len(sample) - 1] = sample[1:]
        return inputs, targets, None

    def collate_packed(self, samples: list[torch.Tensor], multiple: int = 1) -> Batch:
        """Concatenate the documents: inputs and targets, each [1, total]; positions that fill up the row do not count."""
        lengths = [len(sample) - 1 for sample in samples]
        rest = -sum(lengths) % multiple
        inputs = F.pad(torch.cat([sample[:-1] for sample in samples]), (0, rest))
        targets = F.pad(torch.cat([sample[1:] for sample in samples]), (0, rest), value=NOTHING)
        return inputs[None], targets[None], hasten.Packing.of([*lengths, rest] if rest else lengths)

    def loss(self, model: nn.Module, batch: Batch) -> hasten.Loss:
        """Sum the cross entropy over the bytes that count."""
        inputs, targets, packing = batch
        logits = model(inputs, packing).float().flatten(0, 1)
        total = F.cross_entropy(logits, targets.flatten(), ignore_index=NOTHING, reduction="sum")
        return hasten.Loss(total, (targets != NOTHING).sum())

    def metric(self, model: nn.Module, batch: Batch) -> dict[str, hasten.Mean]:
        """Measure bits per byte."""
        loss = self.loss(model, batch)
        return {"bits_per_byte": hasten.Mean(loss.total / math.log(2), loss.weight)}
