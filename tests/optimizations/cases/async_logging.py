"""Test case of async_logging."""

from __future__ import annotations

from typing import Any

from hasten.optimizations.async_logging import AsyncLogging
from tests.optimizations.contract import Case, Prepared, facts

EPOCH: dict[str, Any] = {"epoch_s": 10.0, "report_s": 0.01, "reports_per_epoch": 50.0}
CASE = Case(
    make=AsyncLogging, job=Prepared, facts=facts(**EPOCH),
    refused=((facts(epoch_s=10.0), "no metric report was measured"),),
)  # fmt: skip
