"""Preparation on the device: images stored as bytes train and are measured like images normalised beforehand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from hasten.core.plan import Plan
from hasten.optimizations.channels_last import ChannelsLast
from hasten.profile.probes import probe_input
from hasten.train.build import build
from hasten.train.loop import Loop
from hasten.train.validate import HeldOut
from tests.optimizations.contract import CPU, Images

PIXELS = torch.randint(0, 256, (14, 3, 12, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def normalised(images: torch.Tensor) -> torch.Tensor:
    """Convert bytes to floats around 0."""
    return images.float().div(255).sub(0.5)


class Stored(Images):
    """Small images stored as bytes."""

    def train_data(self) -> Any:
        return TensorDataset(PIXELS, torch.arange(len(PIXELS)) % 5)

    def valid_data(self) -> Any:
        return self.train_data()

    def device_transform(self, batch: Any) -> Any:
        images, targets = batch
        assert images.dtype is torch.uint8
        return normalised(images), targets


class Prepared(Images):
    """The same images, normalised beforehand."""

    def train_data(self) -> Any:
        return TensorDataset(normalised(PIXELS), torch.arange(len(PIXELS)) % 5)

    def valid_data(self) -> Any:
        return self.train_data()


@pytest.mark.parametrize("plan", [Plan(), Plan(optimizations=(ChannelsLast(),))], ids=["plain", "channels_last"])
def test_preparation_on_the_device_gives_the_same_losses_and_metrics(plan: Plan) -> None:
    losses, held_out, sizes = [], [], []
    for job in (Stored(), Prepared()):
        loop = Loop(build(job, plan, device=CPU))
        sizes.append(probe_input(loop.live, loop.upcoming(1)).sample_bytes or 0)
        loop.run(6)
        losses.append(loop.losses)
        held_out.append(HeldOut(loop.live).measure())
    assert losses[0] == losses[1]
    assert held_out[0] == held_out[1]
    assert sizes[0] < 0.5 * sizes[1]
