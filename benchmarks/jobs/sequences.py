"""Shared parts of sequence jobs: batches of tokens, padded or concatenated, and the loss of the next token."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  the name everybody uses

import hasten

NOTHING = -100
Batch = tuple[torch.Tensor, torch.Tensor, hasten.Packing | None]


class NextTokenJob(hasten.Job):
    """Predict the next token of sequences, padded to the maximum length.

    Attributes:
        longest: Largest number of predicted positions; a sequence has one token more.
    """

    longest: ClassVar[int]

    def length(self, sample: torch.Tensor) -> int:
        """Count the positions of a sequence."""
        return len(sample) - 1

    def padded(self, samples: list[torch.Tensor]) -> int:
        """Return the padded length of a row."""
        return self.longest

    def collate(self, samples: list[torch.Tensor]) -> Batch:
        """Pad to inputs and targets, each [batch, time]."""
        time = self.padded(samples)
        inputs = torch.zeros(len(samples), time, dtype=torch.long)
        targets = torch.full((len(samples), time), NOTHING)
        for row, sample in enumerate(samples):
            inputs[row, : len(sample) - 1], targets[row, : len(sample) - 1] = sample[:-1], sample[1:]
        return inputs, targets, None

    def collate_packed(self, samples: list[torch.Tensor]) -> Batch:
        """Concatenate the sequences: inputs and targets, each [1, total]."""
        inputs, targets = (torch.cat([sample[cut] for sample in samples])[None] for cut in (slice(-1), slice(1, None)))
        return inputs, targets, hasten.Packing.of([len(sample) - 1 for sample in samples])

    def loss(self, model: nn.Module, batch: Batch) -> hasten.Loss:
        """Sum the cross entropy over the tokens that count."""
        inputs, targets, packing = batch
        logits = model(inputs, packing).float().flatten(0, 1)
        total = F.cross_entropy(logits, targets.flatten(), ignore_index=NOTHING, reduction="sum")
        return hasten.Loss(total, (targets != NOTHING).sum())
