"""Test case of module_precision."""

from __future__ import annotations

from hasten.optimizations.module_precision import ModulePrecision
from tests.optimizations.contract import Case, Images, facts

CASE = Case(
    make=ModulePrecision, job=Images, facts=facts(),
    refused=(
        (facts(job={"param_dtypes": ("bfloat16",)}), "the parameters are bfloat16, not float32"),
        (facts(job={"module_counts": {"Embedding": 1, "LSTM": 2}}), "no linear layer and no convolution"),
        (facts(on={"bfloat16": False}), "no native bfloat16: test says False"),
        (facts(bf16_matmul_gain=0.8), "0.80 times the speed of float32"),
    ),
)  # fmt: skip
