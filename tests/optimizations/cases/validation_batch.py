"""Test case of validation_batch."""

from __future__ import annotations

from typing import Any

from hasten.optimizations.validation_batch import ValidationBatch
from tests.optimizations.contract import GIB, Case, Ragged, facts

EPOCH: dict[str, Any] = {"epoch_s": 10.0, "validation_s": 3.0, "validation_batches": 20}
CASE = Case(
    make=ValidationBatch, job=Ragged, facts=facts(**EPOCH),
    refused=(
        (facts(epoch_s=10.0), "there is no held-out data"),
        (facts(**{**EPOCH, "validation_batches": 1}), "already fits in one batch"),
        (facts(**EPOCH, peak_memory_bytes=7 * GIB), "memory is short: training uses up to 7.0 of 8.0 GiB"),
    ),
)  # fmt: skip
