"""How structured_sparsity is tested."""

from __future__ import annotations

from hasten.optimizations.structured_sparsity import StructuredSparsity
from tests.optimizations.contract import Case, Ragged, facts

CASE = Case(
    make=lambda: StructuredSparsity(keep_frac=0.5), job=Ragged, facts=facts(job={"hidden_layers": 3}), other_weights=True,
    refused=(
        (facts(), "no hidden layer lies plainly between two layers"),
        (facts(job={"hidden_layers": 3, "has_quality": False}), "trains a smaller model.* set quality"),
    ),
)  # fmt: skip
