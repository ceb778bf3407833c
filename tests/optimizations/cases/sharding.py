"""How sharding is tested."""

from __future__ import annotations

from hasten.optimizations.sharding import Sharding
from tests.optimizations.cases.gradient_buckets import SYNC
from tests.optimizations.contract import Attention, Case, facts

CASE = Case(
    make=Sharding, job=Attention, needs_ranks=True, facts=facts(job={"ranks": 2}, phase_frac=SYNC),
    refused=(
        (facts(), "one process trains alone"),
        (facts(job={"ranks": 2, "repeated_blocks": 0}), "no list of like blocks"),
        (facts(job={"ranks": 2, "gradient_sync": "buckets"}), "summed in buckets already"),
        (facts(job={"ranks": 8}), "8 ranks without a sample"),
    ),
)  # fmt: skip
