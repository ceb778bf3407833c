"""How gradient_buckets is tested."""

from __future__ import annotations

from hasten.optimizations.gradient_buckets import GradientBuckets
from tests.optimizations.contract import GOOD, Attention, Case, facts

SYNC = {**GOOD["phase_frac"], "sync": 0.2}

CASE = Case(
    make=lambda: GradientBuckets(bucket_mb=0.005), job=Attention, needs_ranks=True,
    facts=facts(job={"ranks": 2, "num_params": 10**8}, phase_frac=SYNC),
    refused=(
        (facts(phase_frac=SYNC), "one process trains alone"),
        (facts(job={"ranks": 8}, phase_frac=SYNC), "batches of 4 leave some of 8 ranks without a sample"),
        (facts(job={"ranks": 2, "gradient_sync": "buckets"}, phase_frac=SYNC), "summed in buckets already"),
        (facts(job={"ranks": 2, "gradient_sync": "shards"}, phase_frac=SYNC), "summed in shards already"),
    ),
)  # fmt: skip
