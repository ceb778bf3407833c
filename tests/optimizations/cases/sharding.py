"""Test case of sharding."""

from __future__ import annotations

from hasten.optimizations.sharding import Sharding
from tests.optimizations.cases.gradient_buckets import SYNC
from tests.optimizations.contract import Attention, Case, facts

CASE = Case(
    make=Sharding, job=Attention, needs_ranks=True, facts=facts(job={"ranks": 2}, phase_frac=SYNC),
    refused=(
        (facts(), "trains in one process"),
        (facts(job={"ranks": 2, "repeated_blocks": 0}), "no list of repeated blocks"),
        (facts(job={"ranks": 2, "gradient_sync": "buckets"}), "already summed in buckets"),
        (facts(job={"ranks": 8}), "8 ranks have no sample"),
    ),
)  # fmt: skip
