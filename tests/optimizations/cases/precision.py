"""Test case of precision."""

from __future__ import annotations

from hasten.optimizations.precision import Precision
from tests.optimizations.contract import Case, Images, facts

CASE = Case(
    make=Precision, job=Images, facts=facts(),
    refused=(
        (facts(job={"param_dtypes": ("bfloat16",)}), "the parameters are already bfloat16"),
        (facts(on={"bfloat16": False}), "no native 16-bit arithmetic: test says False"),
        (facts(bf16_matmul_gain=0.8), "0.80 times the speed of float32"),
    ),
)  # fmt: skip
