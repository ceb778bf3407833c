"""Test case of drop_last."""

from __future__ import annotations

from hasten.optimizations.drop_last import DropLast
from tests.optimizations.contract import Case, Ragged, facts

CASE = Case(
    make=DropLast, job=Ragged, facts=facts(job={"num_samples": 99}), leaves_out=2,
    refused=(
        (facts(job={"num_samples": None}), "iterable dataset"),
        (facts(job={"num_samples": 100}), "every batch is full: 100 samples in batches of 4"),
        (facts(job={"num_samples": 3}), "do not fill one batch of 4"),
        (facts(job={"num_samples": 99, "shuffle": False}), "would never be trained on"),
        (facts(job={"num_samples": 99, "has_quality": False}), "set quality"),
    ),
)  # fmt: skip
