"""Test case of foreach_optimizer."""

from __future__ import annotations

from hasten.optimizations.foreach_optimizer import ForeachOptimizer
from tests.optimizations.contract import Attention, Case, facts

CASE = Case(
    make=ForeachOptimizer, job=Attention, facts=facts(),
    refused=(
        (facts(job={"optimizer_class": "LBFGS"}), "LBFGS has no foreach implementation in PyTorch 2.x"),
        (facts(job={"optimizer_fused": True}), "fused, which is faster still"),
        (facts(job={"device": "cuda"}), "on CUDA by default"),
        (facts(job={"num_param_tensors": 1}), "only one parameter tensor"),
    ),
)  # fmt: skip
