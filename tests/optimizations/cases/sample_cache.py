"""Test case of sample_cache."""

from __future__ import annotations

from hasten.optimizations.sample_cache import SampleCache
from tests.optimizations.contract import GIB, Case, Prepared, facts

CASE = Case(
    make=SampleCache, job=Prepared, facts=facts(),
    refused=(
        (facts(job={"has_deterministic_transform": False}), "implement deterministic_transform"),
        (facts(job={"num_samples": None}), "iterable dataset"),
        (facts(job={"planned_updates": 25}), "used at most once"),
        (facts(job={"num_samples": 98, "planned_updates": 25}), "used at most once"),  # 25 batches of 4 are 100
        (facts(sample_bytes=None), "could not be measured"),
        (facts(sample_bytes=GIB), "100.0 GiB, more than a quarter of the memory .2.0 GiB"),
    ),
)  # fmt: skip
