"""Jobs that wait for their samples: repeated decoding, a remote disk, a table that is compressed in chunks."""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  the name everybody uses
from torch.utils.data import Dataset

import hasten

STORED, SHOWN = 96, 48  # pixels per side
READ_S = 0.002  # latency of one remote sample
NUM_CHUNKS, CHUNK_ROWS, NUM_COLUMNS = 32, 128, 64

Sample = tuple[torch.Tensor, torch.Tensor]


class StoredPictures(Dataset[tuple[bytes, int]]):
    """Images as stored in files: compressed bytes [3, STORED, STORED], and a class for each."""

    def __init__(self, num: int) -> None:
        chance = np.random.default_rng(0)
        smooth = chance.integers(0, 256, (num, 3, STORED // 8, STORED // 8), dtype=np.uint8).repeat(8, 2).repeat(8, 3)
        noisy = smooth // 2 + chance.integers(0, 16, smooth.shape, dtype=np.uint8)
        self.files = [zlib.compress(image.tobytes()) for image in noisy]
        self.labels = [int(image.mean() > noisy.mean()) for image in noisy]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        return self.files[index], self.labels[index]


class DecodedJob(hasten.Job):
    """Images that are decompressed and resized again at every visit."""

    batch_size = 32
    num_updates = 100_000

    def model(self) -> nn.Module:
        """Create a network that is fast compared with the decoding."""
        return nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(3 * 12 * 12, 64), nn.ReLU(), nn.Linear(64, 2))

    def train_data(self) -> Dataset[Any]:
        """Create the stored images."""
        return StoredPictures(256)

    def deterministic_transform(self, sample: Any) -> Any:
        """Decompress and resize: [3, SHOWN, SHOWN], from 0 to 1."""
        stored, label = sample
        pixels = np.frombuffer(zlib.decompress(stored), dtype=np.uint8).reshape(3, STORED, STORED)
        image = torch.from_numpy(pixels.copy()).float().div(255)
        return F.interpolate(image[None], SHOWN, mode="bicubic", antialias=True)[0], label

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Create the optimizer."""
        return torch.optim.SGD(model.parameters(), lr=0.05)

    def loss(self, model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        """Compute the mean cross entropy."""
        inputs, labels = batch
        return F.cross_entropy(model(inputs).float(), labels)


class FarAway(Dataset[Sample]):
    """Samples that each take `READ_S` to arrive, without using a core."""

    def __init__(self, num: int) -> None:
        self.features = torch.randn(num, 256, generator=torch.Generator().manual_seed(0))
        self.labels = (self.features.sum(dim=1) > 0).long()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Sample:
        time.sleep(READ_S)
        return self.features[index], self.labels[index]


class DistantJob(DecodedJob):
    """Samples with a delay, as from a remote disk."""

    batch_size = 16

    def model(self) -> nn.Module:
        """Create a network that takes about as long as a few samples."""
        return nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 2))

    def train_data(self) -> Dataset[Any]:
        """Create the remote samples."""
        return FarAway(4096)

    def deterministic_transform(self, sample: Any) -> Any:
        """Return the sample unchanged: defining this method promises that reading draws no random numbers."""
        return sample


class Chunks(Dataset[Sample]):
    """A table whose rows are stored in compressed chunks: reading one row decompresses its whole chunk."""

    def __init__(self) -> None:
        chance = np.random.default_rng(0)
        rows = chance.integers(0, 50, (NUM_CHUNKS, CHUNK_ROWS, NUM_COLUMNS)).astype(np.float32)
        self.labels = torch.from_numpy((rows.mean(axis=2) > rows.mean()).astype(np.int64)).reshape(-1)
        self.chunks = [zlib.compress(chunk.tobytes()) for chunk in rows]

    def __len__(self) -> int:
        return NUM_CHUNKS * CHUNK_ROWS

    def __getitem__(self, index: int) -> Sample:
        return self._chunk(index // CHUNK_ROWS)[index % CHUNK_ROWS].clone(), self.labels[index]

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        """Read several rows, decompressing each chunk once."""
        chunks = {number: self._chunk(number) for number in {index // CHUNK_ROWS for index in indices}}
        return [(chunks[index // CHUNK_ROWS][index % CHUNK_ROWS].clone(), self.labels[index]) for index in indices]

    def _chunk(self, number: int) -> torch.Tensor:
        data = bytearray(zlib.decompress(self.chunks[number]))
        return torch.frombuffer(data, dtype=torch.float32).reshape(CHUNK_ROWS, NUM_COLUMNS)


class ChunksJob(DistantJob):
    """Rows of a table that is compressed in chunks."""

    batch_size = 128

    def model(self) -> nn.Module:
        """Create a network that is fast compared with the decompression."""
        return nn.Sequential(nn.BatchNorm1d(NUM_COLUMNS), nn.Linear(NUM_COLUMNS, 32), nn.ReLU(), nn.Linear(32, 2))

    def train_data(self) -> Dataset[Any]:
        """Create the table."""
        return Chunks()
