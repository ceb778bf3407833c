"""Test case of warmup_cosine."""

from __future__ import annotations

from hasten.optimizations.warmup_cosine import WarmupCosine
from tests.optimizations.contract import Case, Ragged, facts

CASE = Case(
    make=WarmupCosine, job=Ragged, facts=facts(),
    refused=(
        (facts(job={"has_quality": False}), "set quality"),
        (facts(job={"has_schedule": True}), "its own learning-rate schedule"),
        (facts(job={"planned_updates": None}), "set num_updates"),
        (facts(job={"planned_updates": 49}), "49 updates is too short"),
    ),
)  # fmt: skip
