"""How attention_backend is tested."""

from __future__ import annotations

from tests.optimizations.contract import Attention, Case, facts
from upshift.optimizations.attention_backend import AttentionBackend

CASE = Case(
    make=lambda: AttentionBackend(backend="math"), job=Attention, facts=facts(),
    refused=((facts(op_counts={"addmm": 3}), "never calls torch.nn.functional.scaled_dot_product_attention"),),
)  # fmt: skip
