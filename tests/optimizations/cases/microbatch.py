"""Test case of microbatch."""

from __future__ import annotations

from hasten.optimizations.microbatch import Microbatch
from tests.optimizations.contract import Case, Ragged, facts

CASE = Case(
    make=Microbatch, job=Ragged, facts=facts(),
    refused=(
        (facts(job={"module_counts": {"Linear": 2, "BatchNorm2d": 1}}), "has BatchNorm2d, whose statistics"),
        (facts(job={"module_counts": {"SyncBatchNorm": 1}}), "has SyncBatchNorm"),
        (facts(job={"batch_size": 1}), "a single sample"),
    ),
)  # fmt: skip
