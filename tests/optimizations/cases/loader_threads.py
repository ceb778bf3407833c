"""How loader_threads is tested."""

from __future__ import annotations

from hasten.optimizations.loader_threads import LoaderThreads
from tests.optimizations.contract import Case, Prepared, facts

CASE = Case(
    make=LoaderThreads, job=Prepared, facts=facts(job={"load_is_random": False}),
    refused=(
        (facts(job={"load_is_random": False, "num_samples": None}), "iterable dataset"),
        (facts(job={"load_is_random": False, "num_workers": 2}), "2 worker processes are at work already"),
        (facts(job={"load_is_random": False, "num_threads": 2}), "2 threads read ahead already"),
        (facts(job={"load_is_random": True}), "threads share the generators .*deterministic_transform"),
        (facts(job={"load_is_random": False}, on={"cores": 1}, input_wait_frac=0.1), "one core"),
    ),
)  # fmt: skip
