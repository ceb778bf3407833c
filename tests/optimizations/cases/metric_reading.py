"""Test case of metric_reading."""

from __future__ import annotations

from hasten.optimizations.metric_reading import MetricReading
from tests.optimizations.contract import Case, Prepared, facts

CASE = Case(
    make=lambda: MetricReading(every=3), job=Prepared, facts=facts(),
    refused=((facts(job={"read_every": 20}), "already read only every 20 updates"),),
)  # fmt: skip
