"""Test case of sample_store."""

from __future__ import annotations

from hasten.optimizations.sample_store import SampleStore
from tests.optimizations.contract import Case, Prepared, facts

CASE = Case(
    make=SampleStore, job=Prepared, facts=facts(),
    refused=(
        (facts(job={"has_deterministic_transform": False}), "implement deterministic_transform"),
        (facts(job={"num_samples": None}), "iterable dataset"),
        (facts(job={"planned_updates": 25}), "used at most once"),
        (facts(sample_bytes=None), "could not be measured"),
    ),
)  # fmt: skip
