"""Test case of tensor_text."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import hasten
from hasten.optimizations.tensor_text import TensorText
from tests.optimizations.contract import Attention, Case, facts


class Writing(Attention):
    """Converts its weights to text at every step."""

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor | hasten.Loss:
        assert len(str(next(model.parameters()))) > 100
        return super().loss(model, batch)


CASE = Case(
    make=TensorText, job=Writing, facts=facts(tensor_texts_s=0.4, epoch_s=1.0),
    refused=((facts(), "no tensor with several elements was converted to text"),),
)  # fmt: skip
