"""How low_rank_gradients is tested."""

from __future__ import annotations

from hasten.optimizations.low_rank_gradients import LowRankGradients
from tests.optimizations.cases.gradient_buckets import SYNC
from tests.optimizations.cases.gradient_compression import JOB
from tests.optimizations.contract import Attention, Case, facts

CASE = Case(
    make=lambda: LowRankGradients(rank=1), job=Attention, needs_ranks=True, facts=facts(job=JOB, phase_frac=SYNC),
    refused=(
        (facts(phase_frac=SYNC), "one process trains alone"),
        (facts(job={"ranks": 2}, phase_frac=SYNC), "gradient_buckets must be in the plan first"),
        (facts(job={**JOB, "has_quality": False}, phase_frac=SYNC), "does not say what quality must hold"),
    ),
)  # fmt: skip
