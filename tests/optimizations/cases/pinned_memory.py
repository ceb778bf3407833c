"""Test case of pinned_memory."""

from __future__ import annotations

from hasten.optimizations.pinned_memory import PinnedMemory
from tests.optimizations.contract import Case, Images, facts

CASE = Case(
    make=PinnedMemory, job=Images, facts=facts(job={"device": "cuda"}), needs_gpu=True,
    refused=(
        (facts(), "runs on cpu"),
        (facts(job={"device": "cuda", "pin_memory": True}), "already page-locked"),
    ),
)  # fmt: skip
