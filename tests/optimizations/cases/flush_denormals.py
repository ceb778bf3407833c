"""Test case of flush_denormals."""

from __future__ import annotations

from hasten.optimizations.flush_denormals import FlushDenormals
from tests.optimizations.contract import Attention, Case, facts

CASE = Case(
    make=FlushDenormals, job=Attention, facts=facts(),
    refused=(
        (facts(job={"device": "cuda"}), "runs on cuda, which has no such switch"),
        (facts(form_gains={"flushed": 1.04}), "not make a few updates faster: 1.04x"),
        (facts(form_gains={}), "was not measured"),
    ),
)  # fmt: skip
