"""The same training as a job, which says more than a script.

So more techniques can be tried, and proved on held-out data.

hasten tune tones_job.py:TonesJob --budget 3m
hasten tune tones_job.py:TonesJob --budget 3m --ranks 2
hasten run tones_job.py:TonesJob --plan hasten-out/hasten.toml
"""

from __future__ import annotations

import torch
from tones import Tones, make_model
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the usual name

import hasten

Batch = tuple[torch.Tensor, torch.Tensor]


class TonesJob(hasten.Job):
    """Tell which tone a recording holds."""

    batch_size = 32
    epochs = 10
    quality = hasten.Quality(
        metric="accuracy", direction="max", margin=0.02
    )  # what "not worse" means

    def model(self) -> nn.Module:
        """Make the model."""
        return make_model()

    def train_data(self) -> Tones:
        """Make the recordings to learn from."""
        return Tones(8192)

    def valid_data(self) -> Tones:
        """Make the held-out recordings."""
        return Tones(512, seed=1)

    def deterministic_transform(
        self, sample: tuple[torch.Tensor, int]
    ) -> tuple[torch.Tensor, int]:
        """Promise that a sample is always the same, so that it may be cached."""
        return sample

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Make the optimizer."""
        return torch.optim.AdamW(model.parameters(), lr=1e-3)

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Return the mean loss of a batch."""
        recordings, labels = batch
        return F.cross_entropy(model(recordings), labels)

    def metric(self, model: nn.Module, batch: Batch) -> dict[str, hasten.Mean]:
        """Count the recordings whose tone is found."""
        recordings, labels = batch
        return {
            "accuracy": hasten.Mean(
                (model(recordings).argmax(1) == labels).sum(), len(labels)
            )
        }
