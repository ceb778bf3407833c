"""Test case of validation_compile."""

from __future__ import annotations

from typing import Any

from hasten.optimizations.validation_compile import ValidationCompile
from tests.optimizations.contract import Case, Ragged, facts

EPOCH: dict[str, Any] = {"epoch_s": 10.0, "validation_s": 3.0, "validation_batches": 20}
CASE = Case(
    make=ValidationCompile, job=Ragged, facts=facts(**EPOCH),
    refused=(
        (facts(**EPOCH, on={"cxx_compiler": None}), "needs a C.. compiler here: test says None"),
        (facts(epoch_s=10.0), "there is no held-out data"),
    ),
)  # fmt: skip
