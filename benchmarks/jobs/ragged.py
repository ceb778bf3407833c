"""Sequence jobs: padded far beyond their length, padded within their batch, and attention over short or long sequences."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  the name everybody uses
from torch.utils.data import Dataset, TensorDataset

import hasten
from benchmarks.jobs.sequences import NOTHING, NextTokenJob

VOCABULARY, LONGEST = 32, 256
MANY_TOKENS = 8192


class Block(nn.Module):
    """One transformer layer."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: torch.Tensor, packing: hasten.Packing | None = None) -> torch.Tensor:
        """Map [batch, time, width] to the same shape; a position attends to itself and earlier positions of its sample."""
        batch, time, width = x.shape
        heads = self.query_key_value(self.norm(x)).view(batch, time, 3, self.num_heads, -1)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        seen = hasten.packed_attention(query, key, value, packing, is_causal=True)
        x = x + self.project(seen.transpose(1, 2).reshape(batch, time, width))
        mixed: torch.Tensor = x + self.mlp(self.norm_mlp(x))
        return mixed


class Reader(nn.Module):
    """A small GPT: maps tokens [batch, time] to logits of the next token."""

    def __init__(self, width: int = 64, num_heads: int = 2, num_layers: int = 2) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, width), nn.Embedding(LONGEST, width)
        self.blocks = nn.ModuleList(Block(width, num_heads) for _ in range(num_layers))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, x: torch.Tensor, packing: hasten.Packing | None = None) -> torch.Tensor:
        """Map tokens [batch, time] to logits [batch, time, vocabulary]."""
        position = packing.positions if packing else torch.arange(x.shape[1])
        hidden = self.token(x) + self.position(position)
        for block in self.blocks:
            hidden = block(hidden, packing)
        logits: torch.Tensor = self.head(hidden)
        return logits


class Texts(Dataset[torch.Tensor]):
    """Tokens that count upwards with random errors; each text is one token longer than its number of predicted positions."""

    def __init__(self, lengths: torch.Tensor, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.texts = [self._text(int(length), generator) for length in lengths]

    @staticmethod
    def _text(length: int, generator: torch.Generator) -> torch.Tensor:
        steps = 1 + 3 * (torch.rand(length + 1, generator=generator) < 0.1).long()
        return (torch.randint(VOCABULARY, (1,), generator=generator) + steps.cumsum(0)) % VOCABULARY

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.texts[index]


class PaddedToLongestJob(NextTokenJob):
    """Short texts, all padded to the maximum length."""

    longest = LONGEST
    batch_size = 16
    num_updates = 100_000
    quality = hasten.Quality(metric="loss", margin=0.05)  # nats per token

    def model(self) -> nn.Module:
        """Create the model."""
        return Reader()

    def lengths(self, num: int, seed: int) -> torch.Tensor:
        """Draw lengths, all far below the maximum."""
        return torch.randint(10, 100, (num,), generator=torch.Generator().manual_seed(seed))

    def train_data(self) -> Dataset[Any]:
        """Create the training texts."""
        return Texts(self.lengths(1024, seed=0), seed=2)

    def valid_data(self) -> Dataset[Any]:
        """Create the validation texts."""
        return Texts(self.lengths(64, seed=1), seed=3)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Create the optimizer."""
        return torch.optim.AdamW(model.parameters(), lr=2e-3)

    def deterministic_transform(self, sample: torch.Tensor) -> torch.Tensor:
        """Return the sample unchanged: texts are the same at every visit."""
        return sample


class PaddedInBatchJob(PaddedToLongestJob):
    """Texts of very different lengths, each batch padded to its own longest."""

    def lengths(self, num: int, seed: int) -> torch.Tensor:
        """Draw lengths from 8 to the maximum, uniformly on a logarithmic scale."""
        share = torch.rand(num, generator=torch.Generator().manual_seed(seed))
        return (8.0 * (LONGEST / 8.0) ** share).long()

    def padded(self, samples: list[torch.Tensor]) -> int:
        """Return the length of the longest text in the batch."""
        return max(self.length(sample) for sample in samples)


class Masked(nn.Module):
    """A small masked language model: maps tokens [batch, time] to logits over a large vocabulary."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.token = nn.Embedding(MANY_TOKENS, width)
        self.block = Block(width, num_heads=2)
        self.head = nn.Linear(width, MANY_TOKENS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map tokens [batch, time] to logits [batch, time, vocabulary]."""
        logits: torch.Tensor = self.head(self.block(self.token(x)))
        return logits


class MaskedTokensJob(hasten.Job):
    """A large vocabulary, predicted at one position in seven."""

    batch_size = 16
    num_updates = 100_000
    output_layer: ClassVar[str | None] = "head"

    def model(self) -> nn.Module:
        """Create the model."""
        return Masked()

    def train_data(self) -> Dataset[Any]:
        """Create tokens [time], and the target at each position, or none."""
        generator = torch.Generator().manual_seed(0)
        tokens = torch.randint(MANY_TOKENS, (256, 64), generator=generator)
        hidden = torch.rand(tokens.shape, generator=generator) < 1 / 7
        hidden[:, 0] = True
        return TensorDataset(tokens.masked_fill(hidden, 0), tokens.masked_fill(~hidden, NOTHING))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Create the optimizer."""
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def counted(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """Return a mask of the hidden tokens."""
        return batch[1] != NOTHING

    def loss(self, model: nn.Module, batch: list[torch.Tensor]) -> hasten.Loss:
        """Sum the cross entropy over the hidden tokens."""
        tokens, targets = batch
        logits = model(tokens).float().flatten(0, 1)
        total = F.cross_entropy(logits, targets.flatten(), ignore_index=NOTHING, reduction="sum")
        return hasten.Loss(total, (targets != NOTHING).sum())


class Windows(nn.Module):
    """Attention within windows: [batch, time, width] to [batch, 1]."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, num_heads) for _ in range(2))
        self.head = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend, then take the mean over time."""
        for block in self.blocks:
            x = block(x)
        found: torch.Tensor = self.head(x.mean(dim=1))
        return found


class ShortAttentionJob(hasten.Job):
    """Attention over windows of 8 positions, many at once."""

    batch_size = 256
    num_updates = 100_000
    time, width = 8, 32

    def model(self) -> nn.Module:
        """Create the model."""
        return Windows(self.width, num_heads=4)

    def train_data(self) -> Dataset[Any]:
        """Create windows [time, width], and a target for each."""
        windows = torch.randn(4 * self.batch_size, self.time, self.width, generator=torch.Generator().manual_seed(0))
        return TensorDataset(windows, windows.mean(dim=1)[:, :1] * 5)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Create the optimizer."""
        return torch.optim.AdamW(model.parameters(), lr=1e-3)

    def loss(self, model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        """Compute the mean squared error."""
        windows, targets = batch
        return F.mse_loss(model(windows).float(), targets)


class LongAttentionJob(ShortAttentionJob):
    """Attention over 768 positions with the plain formula, its fast kernel disabled."""

    batch_size = 2
    time, width = 768, 64

    def model(self) -> nn.Module:
        """Create the model, with the fast kernel disabled by a leftover setting."""
        torch.backends.cuda.enable_flash_sdp(enabled=False)  # also disables the CPU's kernel
        return super().model()
