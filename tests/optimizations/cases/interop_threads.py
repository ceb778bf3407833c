"""How interop_threads is tested."""

from __future__ import annotations

from hasten.optimizations.interop_threads import InteropThreads
from tests.optimizations.contract import Attention, Case, facts

SCRIPTED = {"module_counts": {"Linear": 2, "RecursiveScriptModule": 3}}

CASE = Case(
    make=InteropThreads, job=Attention, facts=facts(job=SCRIPTED),
    refused=(
        (facts(), "the model holds no TorchScript module"),
        (facts(job={**SCRIPTED, "device": "cuda"}), "the model runs on cuda"),
    ),
)  # fmt: skip
