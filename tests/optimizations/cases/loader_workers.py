"""How loader_workers is tested."""

from __future__ import annotations

from tests.optimizations.contract import Case, Prepared, facts
from upshift.optimizations.loader_workers import LoaderWorkers

CASE = Case(
    make=lambda: LoaderWorkers(num_workers=1), job=Prepared, facts=facts(),
    refused=(
        (facts(job={"num_samples": None}), "iterable dataset"),
        (facts(job={"num_workers": 2}), "2 workers are at work already"),
    ),
)  # fmt: skip
