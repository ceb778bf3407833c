"""How foreach_optimizer is tested."""

from __future__ import annotations

from hasten.optimizations.foreach_optimizer import ForeachOptimizer
from tests.optimizations.contract import Attention, Case, facts

CASE = Case(
    make=ForeachOptimizer, job=Attention, facts=facts(),
    refused=(
        (facts(job={"optimizer_class": "LBFGS"}), "LBFGS has no foreach form in PyTorch 2.x"),
        (facts(job={"optimizer_fused": True}), "fused, which goes further"),
        (facts(job={"device": "cuda"}), "on CUDA by itself"),
        (facts(job={"num_param_tensors": 1}), "one parameter tensor"),
    ),
)  # fmt: skip
