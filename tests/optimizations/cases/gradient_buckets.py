"""Test case of gradient_buckets."""

from __future__ import annotations

from hasten.optimizations.gradient_buckets import GradientBuckets
from tests.optimizations.contract import GOOD, Attention, Case, facts

SYNC = {**GOOD["phase_frac"], "sync": 0.2}

CASE = Case(
    make=lambda: GradientBuckets(bucket_mb=0.005), job=Attention, needs_ranks=True,
    facts=facts(job={"ranks": 2, "num_params": 10**8}, phase_frac=SYNC),
    refused=(
        (facts(phase_frac=SYNC), "trains in one process"),
        (facts(job={"ranks": 8}, phase_frac=SYNC), "with batches of 4, some of the 8 ranks have no sample"),
        (facts(job={"ranks": 2, "gradient_sync": "buckets"}, phase_frac=SYNC), "already summed in buckets"),
        (facts(job={"ranks": 2, "gradient_sync": "shards"}, phase_frac=SYNC), "already summed in shards"),
    ),
)  # fmt: skip
