"""Test case of fused_optimizer."""

from __future__ import annotations

from hasten.optimizations.fused_optimizer import FusedOptimizer
from tests.optimizations.contract import Attention, Case, facts

CASE = Case(
    make=FusedOptimizer, job=Attention, facts=facts(),
    refused=(
        (facts(job={"optimizer_class": "RMSprop"}), "RMSprop has no fused kernel in PyTorch 2.x"),
        (facts(job={"optimizer_fused": True}), "already fused"),
    ),
)  # fmt: skip
