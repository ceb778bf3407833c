"""A byte-level GPT on real counselling conversations, padded to the maximum length: short questions, long answers.

The text is read from `counsel/conversations.jsonl` of the public data: one JSON object per line, with `messages`, each with
`role` and `content` (2,129 conversations of nbertagnolli/counsel-chat). It is not included.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from benchmarks.public_data import CONVERSATIONS, NOT_THERE
from examples.text import NOTHING, Batch, ByteGPT, TextJob
from hasten.core.errors import JobError

MAX_LENGTH = 2048  # positions; longer conversations are truncated
NUM_TRAIN, NUM_HELD_OUT = 320, 40


def conversations() -> list[bytes]:
    """Read the conversations, with the speaker of each turn, in a fixed random order.

    Raises:
        JobError: The file is missing.
    """
    if not CONVERSATIONS.is_file():
        raise JobError(f"{NOT_THERE}.")
    rows = [json.loads(line) for line in CONVERSATIONS.read_text(encoding="utf-8").splitlines()]
    texts = ["\n".join(f"{turn['role']}: {turn['content']}" for turn in row["messages"]).encode() for row in rows]
    order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(0))
    return [texts[index] for index in order.tolist()]


class Conversations(Dataset[torch.Tensor]):
    """Conversations as tensors of bytes, each one byte longer than its number of predicted positions."""

    def __init__(self, texts: list[bytes]) -> None:
        self.texts = texts

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(list(self.texts[index][: MAX_LENGTH + 1]))


class DialoguesJob(TextJob):
    """Predict the next byte of a conversation; everything except the data and their length is that of the text example."""

    width, num_heads = 96, 3

    def model(self) -> nn.Module:
        """Create the model, with a position for every possible byte."""
        model = ByteGPT(self.width, num_heads=self.num_heads)
        model.position = nn.Embedding(MAX_LENGTH, self.width)
        return model

    def train_data(self) -> Dataset[Any]:
        """Create the training conversations."""
        return Conversations(conversations()[NUM_HELD_OUT : NUM_HELD_OUT + NUM_TRAIN])

    def valid_data(self) -> Dataset[Any]:
        """Create the validation conversations."""
        return Conversations(conversations()[:NUM_HELD_OUT])

    def collate(self, samples: list[torch.Tensor]) -> Batch:
        """Pad every conversation to the maximum length: inputs and targets, each [batch, MAX_LENGTH]."""
        inputs = torch.zeros(len(samples), MAX_LENGTH, dtype=torch.long)
        targets = torch.full((len(samples), MAX_LENGTH), NOTHING)
        for row, sample in enumerate(samples):
            inputs[row, : len(sample) - 1] = sample[:-1]
            targets[row, : len(sample) - 1] = sample[1:]
        return inputs, targets, None
