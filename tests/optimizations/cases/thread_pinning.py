"""How thread_pinning is tested."""

from __future__ import annotations

from hasten.optimizations.thread_pinning import ThreadPinning
from tests.optimizations.contract import Attention, Case, facts

CASE = Case(
    make=ThreadPinning, job=Attention, facts=facts(),
    refused=(
        (facts(job={"device": "cuda"}), "runs on cuda"),
        (facts(on={"openmp": ""}), "no OpenMP to bind threads"),
        (facts(on={"cores": 1}), "nothing to keep apart: 1 core"),
        (facts(on={"threads": 1}), "nothing to keep apart: 4 core.s., 1 thread"),
        (facts(job={"num_workers": 2}), "2 loader workers would all share"),
    ),
)  # fmt: skip
