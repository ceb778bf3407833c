"""Test case of eight_bit_states."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import hasten
from hasten.core.job import Job
from hasten.optimizations.eight_bit_states import EightBitStates
from tests.optimizations.contract import Case, facts


class Square(Job):
    """A single weight of 64 x 64: 4096 parameters, so that one step is compiled."""

    batch_size = 4
    epochs = 3

    def model(self) -> nn.Module:
        return nn.Linear(64, 64, bias=False)

    def train_data(self) -> Dataset[Any]:
        x = torch.randn(14, 64, generator=torch.Generator().manual_seed(6))
        return TensorDataset(x, x.flip(1))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=1e-2)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor | hasten.Loss:
        return nn.functional.mse_loss(model(batch[0]), batch[1])


READY: dict[str, Any] = {"packages": ("torchao",)}
LARGE = {"largest_param": 4096}

CASE = Case(
    make=EightBitStates, job=Square, facts=facts(job=LARGE, **READY), needs_package="torchao",
    refused=(
        (facts(job={**LARGE, "optimizer_class": "SGD"}, **READY), "SGD has no 8-bit version"),
        (facts(job={"largest_param": 4095}, **READY), "largest tensor has 4095 parameters"),
        (facts(job=LARGE), r"torchao is not installed: pip install 'hasten\[eight-bit\]'"),
        (facts(job=LARGE, on={"cxx_compiler": None}, **READY), "needs a C.. compiler: test says None"),
    ),
)  # fmt: skip
