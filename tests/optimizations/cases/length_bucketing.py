"""Test case of length_bucketing."""

from __future__ import annotations

from hasten.optimizations.length_bucketing import LengthBucketing
from tests.optimizations.contract import Case, Ragged, facts

CASE = Case(
    make=lambda: LengthBucketing(window_batches=4), job=Ragged, facts=facts(),
    refused=(
        (facts(job={"has_length": False}), "implement length"),
        (facts(job={"num_samples": None}), "iterable dataset"),
        (facts(job={"has_quality": False}), "set quality"),
        (facts(excess_padding_frac=0.2), "trim_padding"),
        (facts(padding_frac=0.0), "no padding inside batches"),
    ),
)  # fmt: skip
