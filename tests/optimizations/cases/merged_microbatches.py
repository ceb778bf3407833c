"""Test case of merged_microbatches."""

from __future__ import annotations

from hasten.optimizations.merged_microbatches import MergedMicrobatches
from tests.optimizations.contract import Case, Ragged, facts


class Accumulated(Ragged):
    """8 micro-batches per epoch, the last one short, in updates of 3, 3 and 2."""

    accumulation = 3


CASE = Case(
    make=MergedMicrobatches, job=Accumulated, facts=facts(job={"accumulation": 8}),
    refused=(
        (facts(), "an update is one micro-batch"),
        (facts(job={"accumulation": 8, "num_samples": None}), "iterable dataset"),
        (facts(job={"accumulation": 8, "module_counts": {"BatchNorm2d": 1}}), "has BatchNorm2d, whose statistics"),
    ),
)  # fmt: skip
