"""Test case of attention_backend."""

from __future__ import annotations

from hasten.optimizations.attention_backend import AttentionBackend
from tests.optimizations.contract import Attention, Case, facts

CASE = Case(
    make=lambda: AttentionBackend(backend="math"), job=Attention, facts=facts(),
    refused=((facts(op_counts={"addmm": 3}), "never calls torch.nn.functional.scaled_dot_product_attention"),),
)  # fmt: skip
