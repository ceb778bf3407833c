"""Test case of loader_threads."""

from __future__ import annotations

from hasten.optimizations.loader_threads import LoaderThreads
from tests.optimizations.contract import Case, Prepared, facts

CASE = Case(
    make=LoaderThreads, job=Prepared, facts=facts(job={"load_is_random": False}),
    refused=(
        (facts(job={"load_is_random": False, "num_samples": None}), "iterable dataset"),
        (facts(job={"load_is_random": False, "num_workers": 2}), "already uses 2 worker processes"),
        (facts(job={"load_is_random": False, "num_threads": 2}), "already prefetches in 2 threads"),
        (facts(job={"load_is_random": True}), "threads share the random generators.*deterministic_transform"),
        (facts(job={"load_is_random": False}, on={"cores": 1}, input_wait_frac=0.1), "one core"),
    ),
)  # fmt: skip
