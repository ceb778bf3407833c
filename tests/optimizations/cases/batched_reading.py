"""Test case of batched_reading."""

from __future__ import annotations

from hasten.optimizations.batched_reading import BatchedReading
from tests.optimizations.contract import Case, PreparedRows, facts

CASE = Case(
    make=BatchedReading, job=PreparedRows, facts=facts(job={"has_getitems": True, "load_is_random": False}),
    refused=(
        (facts(job={"has_getitems": True, "load_is_random": False, "num_samples": None}), "iterable dataset"),
        (facts(job={"has_getitems": False, "load_is_random": False}), "no method `__getitems__"),
        (facts(job={"has_getitems": True, "load_is_random": False, "batch_size": 1}), "a batch holds a single sample"),
        (facts(job={"has_getitems": True, "load_is_random": True}), "seeded per sample"),
    ),
)  # fmt: skip
