"""Test case of channels_last_3d."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from hasten.optimizations.channels_last_3d import ChannelsLast3d
from tests.optimizations.contract import Case, Images, facts


class Volumes(Images):
    """The same job with small volumes."""

    def model(self) -> nn.Module:
        layers = [nn.Conv3d(3, 8, 3, padding=1), nn.BatchNorm3d(8), nn.ReLU(), nn.Conv3d(8, 8, 3), nn.ReLU()]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool3d(2), nn.Flatten(), nn.Linear(64, 5))

    def train_data(self) -> Dataset[Any]:
        generator = torch.Generator().manual_seed(1)
        return TensorDataset(torch.randn(14, 3, 6, 8, 8, generator=generator), torch.arange(14) % 5)


CASE = Case(
    make=ChannelsLast3d, job=Volumes, facts=facts(job={"module_counts": {"Conv3d": 1}}),
    refused=((facts(), "no 3-d convolution"),),
)  # fmt: skip
