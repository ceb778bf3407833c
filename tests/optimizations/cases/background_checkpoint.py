"""Test case of background_checkpoint."""

from __future__ import annotations

from typing import Any

from hasten.optimizations.background_checkpoint import BackgroundCheckpoint
from tests.optimizations.contract import GIB, Case, Prepared, facts

EPOCH: dict[str, Any] = {"epoch_s": 10.0, "checkpoint_s": 2.0}
CASE = Case(
    make=BackgroundCheckpoint, job=Prepared, facts=facts(**EPOCH, checkpoint_bytes=GIB),
    refused=(
        (facts(epoch_s=10.0), "no checkpoint was measured"),
        (facts(**EPOCH, checkpoint_bytes=7 * GIB), r"weights \(7168 MiB\): the job already uses 1024 of 8192 MiB"),
    ),
)  # fmt: skip
