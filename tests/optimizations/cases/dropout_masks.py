"""Test case of dropout_masks."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import hasten
from hasten.optimizations.dropout_masks import DropoutMasks
from tests.optimizations.contract import Case, Prepared, facts


class Wide(Prepared):
    """Dropout over 4 x 2048 elements, which moves the loss little."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 2048), nn.Tanh(), nn.Dropout(0.1), nn.Linear(2048, 1))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=1e-3)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor | hasten.Loss:
        return nn.functional.mse_loss(batch["x"].sum(dim=1) + 0.01 * model(batch["x"])[:, 0], batch["y"] + 3.0)


CASE = Case(
    make=DropoutMasks, job=Wide, facts=facts(op_counts={"bernoulli_": 3}, op_frac={"bernoulli_": 0.4}),
    refused=(
        (facts(job={"device": "cuda"}), "runs on cuda, where masks are drawn in parallel"),
        (facts(), "draws no dropout masks"),
    ),
)  # fmt: skip
