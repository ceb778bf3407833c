"""Test case of sequence_packing."""

from __future__ import annotations

from hasten.optimizations.sequence_packing import SequencePacking
from tests.optimizations.contract import Case, RaggedPacked, facts

CASE = Case(
    make=SequencePacking, job=RaggedPacked, facts=facts(),
    refused=(
        (facts(job={"has_collate_packed": False}), "implement collate_packed"),
        (facts(job={"has_length": False}), "implement length"),
        (facts(padding_frac=0.0), "no padding in the batches"),
    ),
)  # fmt: skip
