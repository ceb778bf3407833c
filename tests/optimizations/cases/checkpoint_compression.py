"""How checkpoint_compression is tested."""

from __future__ import annotations

from typing import Any

from hasten.optimizations.checkpoint_compression import CheckpointCompression
from tests.optimizations.contract import Case, Prepared, facts

EPOCH: dict[str, Any] = {"epoch_s": 10.0, "checkpoint_s": 5.0, "checkpoint_bytes": 100_000_000, "write_mb_s": {"run": 20.0}}
CASE = Case(
    make=CheckpointCompression, job=Prepared, facts=facts(**EPOCH, compressed_frac=0.25, compress_mb_s=100.0),
    refused=(
        (facts(**EPOCH), "was not measured"),
        (facts(**{**EPOCH, "write_mb_s": {}}, compressed_frac=0.25, compress_mb_s=100.0), "was not measured"),
        (
            facts(**EPOCH, compressed_frac=0.9, compress_mb_s=50.0),
            "shrink to 90%: compressing and writing them would take 6.50 s, writing them plain 5.00 s",
        ),
    ),
)  # fmt: skip
