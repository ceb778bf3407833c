"""Handwritten digits (those included in scikit-learn) and a small residual network, written the naive way.

Typical inefficiencies: every image is prepared again at every visit, entirely in Python; float32 and the default memory
layout are used throughout; and the host reads the loss at every update.

    hasten tune examples/image.py:DigitsJob --budget 5m --out hasten-out
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from scipy import ndimage
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F  # noqa: N812  the name everybody uses
from torch.utils.data import Dataset

import hasten

SIZE = 64  # pixels per side; the original digits have 8
NUM_HELD_OUT = 297  # of 1,797 digits
MAX_SHIFT = 4.0  # pixels
MAX_TURN = 12.0  # degrees
NOISE = 0.05  # standard deviation, for images with standard deviation 1

Sample = tuple[np.ndarray, int]
Batch = tuple[torch.Tensor, torch.Tensor]


class Digits(Dataset[Sample]):
    """Scanned digits: [8, 8] grey levels of 0 to 16, and the digit shown."""

    def __init__(self, chosen: slice) -> None:
        digits = load_digits()
        order = np.random.default_rng(0).permutation(len(digits.target))[chosen]
        self.images, self.targets = digits.images[order], digits.target[order]

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> Sample:
        return self.images[index], int(self.targets[index])


class Residual(nn.Module):
    """Two convolutions with a skip connection; the first may halve the resolution."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.around = nn.Identity() if stride == 1 and inputs == outputs else nn.Conv2d(inputs, outputs, 1, stride=stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [batch, inputs, height, width] to [batch, outputs, height / stride, width / stride]."""
        hidden = F.relu(self.first_norm(self.first(x)))
        return F.relu(self.second_norm(self.second(hidden)) + self.around(x))


class DigitNet(nn.Sequential):
    """A residual network of three stages: images [batch, 1, height, width] to logits [batch, 10]."""

    def __init__(self, width: int = 32) -> None:
        super().__init__(
            nn.Conv2d(1, width, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            Residual(width, width, stride=1),
            Residual(width, 2 * width, stride=2),
            Residual(2 * width, 4 * width, stride=2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4 * width, 10),
        )


class DigitsJob(hasten.Job):
    """Classify which digit an image shows."""

    batch_size = 32
    epochs = 15
    read_every = 1
    quality = hasten.Quality(metric="accuracy", direction="max", margin=0.02)

    def model(self) -> nn.Module:
        """Create the network."""
        return DigitNet()

    def train_data(self) -> Dataset[Any]:
        """Create the training digits."""
        return Digits(slice(NUM_HELD_OUT, None))

    def valid_data(self) -> Dataset[Any]:
        """Create the validation digits."""
        return Digits(slice(NUM_HELD_OUT))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Create the optimizer."""
        return torch.optim.AdamW(model.parameters(), lr=1e-3)

    def deterministic_transform(self, sample: Sample) -> Sample:
        """Enlarge the scan with splines, smooth its steps, and normalize it."""
        scan, target = sample
        enlarged = ndimage.zoom(scan, SIZE / scan.shape[0], order=3)
        smooth = ndimage.gaussian_filter(enlarged, sigma=2.0)
        return ((smooth - smooth.mean()) / smooth.std()).astype(np.float32), target

    def random_transform(self, sample: Sample) -> Sample:
        """Rotate and shift the image a little, and add noise."""
        image, target = sample
        turned = ndimage.rotate(image, random.uniform(-MAX_TURN, MAX_TURN), reshape=False, order=1, mode="nearest")
        moved = ndimage.shift(turned, [random.uniform(-MAX_SHIFT, MAX_SHIFT) for _ in range(2)], order=1, mode="nearest")
        return moved + NOISE * torch.randn(moved.shape).numpy(), target

    def collate(self, samples: list[Sample]) -> Batch:
        """Stack the images: [batch, 1, SIZE, SIZE], and the digits: [batch]."""
        images = torch.stack([torch.from_numpy(image)[None] for image, _ in samples])
        return images, torch.tensor([target for _, target in samples])

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Compute the mean cross entropy."""
        images, targets = batch
        return F.cross_entropy(model(images).float(), targets)

    def metric(self, model: nn.Module, batch: Batch) -> dict[str, hasten.Mean]:
        """Measure the accuracy."""
        images, targets = batch
        correct = model(images).argmax(dim=1) == targets
        return {"accuracy": hasten.Mean(correct.sum(), len(targets))}
