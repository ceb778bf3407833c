"""How activation_checkpointing is tested."""

from __future__ import annotations

from hasten.optimizations.activation_checkpointing import ActivationCheckpointing
from tests.optimizations.contract import AttentionDropout, Case, facts

CASE = Case(
    make=ActivationCheckpointing, job=AttentionDropout, facts=facts(),
    refused=(
        (facts(job={"repeated_blocks": 0}), "no list of like blocks"),
        (facts(job={"repeated_blocks": 1}), "no list of like blocks"),
    ),
)  # fmt: skip
