"""Test case of activation_checkpointing."""

from __future__ import annotations

from hasten.optimizations.activation_checkpointing import ActivationCheckpointing
from tests.optimizations.contract import AttentionDropout, Case, facts

CASE = Case(
    make=ActivationCheckpointing, job=AttentionDropout, facts=facts(),
    refused=(
        (facts(job={"repeated_blocks": 0}), "no list of repeated blocks"),
        (facts(job={"repeated_blocks": 1}), "no list of repeated blocks"),
    ),
)  # fmt: skip
