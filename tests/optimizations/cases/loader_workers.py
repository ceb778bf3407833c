"""Test case of loader_workers."""

from __future__ import annotations

from hasten.optimizations.loader_workers import LoaderWorkers
from tests.optimizations.contract import GIB, Case, Prepared, facts

CASE = Case(
    make=lambda: LoaderWorkers(num_workers=1), job=Prepared, facts=facts(),
    refused=(
        (facts(job={"num_samples": None}), "iterable dataset"),
        (facts(job={"num_threads": 2}), "already prefetches in 2 threads"),
        (facts(sample_bytes=GIB // 4), "a batch takes 1463 MiB, more than half of the shared memory .*1024 MiB, test says"),
    ),
)  # fmt: skip
