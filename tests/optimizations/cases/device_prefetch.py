"""Test case of device_prefetch."""

from __future__ import annotations

from hasten.optimizations.device_prefetch import DevicePrefetch
from tests.optimizations.contract import Case, Images, facts

CASE = Case(
    make=DevicePrefetch, job=Images, facts=facts(job={"device": "cuda"}), needs_gpu=True,
    refused=(
        (facts(), "runs on cpu"),
        (facts(job={"device": "cuda", "device_prefetch": True}), "already prefetched to the GPU"),
    ),
)  # fmt: skip
