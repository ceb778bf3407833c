"""Test case of optimizer_batch."""

from __future__ import annotations

from hasten.optimizations.optimizer_batch import OptimizerBatch
from tests.optimizations.contract import Case, Ragged, facts

CASE = Case(
    make=OptimizerBatch, job=Ragged, facts=facts(),
    refused=(
        (facts(job={"has_quality": False}), "set quality"),
        (facts(job={"num_samples": None}), "iterable dataset"),
        (facts(job={"planned_updates": None}), "set num_updates"),
        (facts(job={"optimizer_class": "LBFGS"}), "learning rate of LBFGS"),
        (facts(job={"planned_updates": 60, "batch_size": 3}), "a run of at least 50 updates"),
    ),
)  # fmt: skip
