"""Test case of matmul_precision."""

from __future__ import annotations

from hasten.optimizations.matmul_precision import MatmulPrecision
from tests.optimizations.contract import Case, Images, facts

GPU = {"device": "cuda"}
NVIDIA = {"torch_build": "cuda 12.8"}

CASE = Case(
    make=MatmulPrecision, job=Images, facts=facts(job=GPU, on=NVIDIA), needs_gpu=True,
    refused=(
        (facts(job={**GPU, "param_dtypes": ("bfloat16",)}, on=NVIDIA), "the parameters are bfloat16, not float32"),
        (facts(job=GPU, on={"torch_build": "rocm 6.4"}), "this PyTorch build is rocm 6.4"),
        (facts(job=GPU, on={**NVIDIA, "bfloat16": False}), "does not support tf32: test says False"),
        (facts(on={"cpu_flags": frozenset({"avx512_bf16"})}), "the processor has no AMX"),
        (facts(job={"device": "mps"}), "no such switch for mps"),
    ),
)  # fmt: skip
