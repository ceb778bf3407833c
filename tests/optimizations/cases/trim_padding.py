"""Test case of trim_padding."""

from __future__ import annotations

from hasten.optimizations.trim_padding import TrimPadding
from tests.optimizations.contract import Case, Ragged, facts

CASE = Case(
    make=TrimPadding, job=Ragged, facts=facts(excess_padding_frac=0.2),
    refused=(
        (facts(job={"has_length": False}), "implement length"),
        (facts(excess_padding_frac=0.0), "already as short as their longest sample"),
    ),
)  # fmt: skip
