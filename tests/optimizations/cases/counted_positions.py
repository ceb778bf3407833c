"""Test case of counted_positions."""

from __future__ import annotations

from typing import Any

import torch

from hasten.optimizations.counted_positions import CountedPositions
from tests.optimizations.contract import Case, Ragged, facts

MEASURED: dict[str, Any] = {"counted_frac": 0.4, "op_frac": {"addmm": 0.3, "mm": 0.3, "tanh": 0.4}}


class RaggedCounted(Ragged):
    """Padded token sequences of a job whose loss ignores padding."""

    def counted(self, batch: Any) -> torch.Tensor:
        mask: torch.Tensor = batch != 0
        return mask


CASE = Case(
    make=CountedPositions, job=RaggedCounted, facts=facts(job={"has_counted": True}, **MEASURED),
    refused=(
        (facts(**MEASURED), "implement counted"),
        (facts(job={"has_counted": True}), "every position of the measured batches"),
    ),
)  # fmt: skip
