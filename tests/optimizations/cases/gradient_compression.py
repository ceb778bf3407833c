"""Test case of gradient_compression."""

from __future__ import annotations

from hasten.optimizations.gradient_compression import GradientCompression
from tests.optimizations.cases.gradient_buckets import SYNC
from tests.optimizations.contract import Attention, Case, facts

JOB = {"ranks": 2, "gradient_sync": "buckets"}

CASE = Case(
    make=GradientCompression, job=Attention, needs_ranks=True, facts=facts(job=JOB, phase_frac=SYNC),
    refused=(
        (facts(phase_frac=SYNC), "trains in one process"),
        (facts(job={"ranks": 2}, phase_frac=SYNC), "gradient_buckets must be in the plan first"),
        (facts(job={**JOB, "param_dtypes": ("bfloat16",)}, phase_frac=SYNC), "the gradients are already bfloat16"),
    ),
)  # fmt: skip
