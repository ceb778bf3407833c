"""Test case of reused_buffers."""

from __future__ import annotations

from typing import Any

from hasten.optimizations.reused_buffers import ReusedBuffers
from tests.optimizations.contract import Case, Images, facts

LARGE: dict[str, Any] = {"sample_bytes": 2**20}

CASE = Case(
    make=lambda: ReusedBuffers(min_bytes=0), job=Images, facts=facts(**LARGE),
    refused=(
        (facts(job={"collate_is_random": True}, **LARGE), "collates its batches itself"),
        (facts(job={"num_workers": 2}, **LARGE), "2 worker processes create the batches"),
        (facts(sample_bytes=None), "size of a sample could not be measured"),
        (facts(sample_bytes=2**14), "a batch takes 64 KiB, .* below 128 KiB"),
    ),
)  # fmt: skip
