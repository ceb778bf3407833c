"""Data and model of the examples in this folder: find the tone in a recording.

Recordings are random. They are stored as telephone systems store sound: one byte for
each value, compressed by the mu-law. Each read decodes a recording in Python, value by
value. That is slow, and a common mistake.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.utils.data import Dataset

NUM_TONES = 8
NUM_VALUES = 800  # of one recording: a tenth of a second
MU = 255.0  # compression of the mu-law, ITU-T G.711


class Tones(Dataset[tuple[torch.Tensor, int]]):
    """Noisy recordings of eight tones, with the number of the tone."""

    def __init__(self, num_recordings: int, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(NUM_TONES, (num_recordings,), generator=generator)
        time = torch.arange(NUM_VALUES) / 8000
        pitch = 440 * 2 ** (self.labels[:, None] / 12)
        start = torch.rand(num_recordings, 1, generator=generator)
        wave = torch.sin(2 * math.pi * (pitch * time + start)) * 0.2
        noisy = (wave + 0.3 * torch.randn(wave.shape, generator=generator)).clamp(-1, 1)
        compressed = noisy.sign() * torch.log1p(MU * noisy.abs()) / math.log1p(MU)
        stored = ((compressed + 1) * 127.5).round().to(torch.uint8)
        self.recordings = [row.tobytes() for row in stored.numpy()]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        """Decode a recording: float32 [1, NUM_VALUES]."""
        values = []
        for byte in self.recordings[index]:
            compressed = byte / 127.5 - 1
            loudness = ((1 + MU) ** abs(compressed) - 1) / MU
            values.append(math.copysign(loudness, compressed))
        return torch.tensor([values]), int(self.labels[index])


def make_model() -> nn.Module:
    """Map recordings [batch, 1, NUM_VALUES] to scores [batch, NUM_TONES]."""
    return nn.Sequential(
        nn.Conv1d(1, 16, 64, stride=16),
        nn.ReLU(),
        nn.Conv1d(16, 32, 8, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(4),
        nn.Flatten(),
        nn.Linear(128, NUM_TONES),
    )
