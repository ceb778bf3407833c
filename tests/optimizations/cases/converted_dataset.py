"""Test case of converted_dataset."""

from __future__ import annotations

from hasten.optimizations.converted_dataset import ConvertedDataset
from tests.optimizations.contract import Case, Prepared, facts

CASE = Case(
    make=ConvertedDataset, job=Prepared, facts=facts(),
    refused=(
        (facts(job={"has_deterministic_transform": False}), "implement deterministic_transform"),
        (facts(job={"num_samples": None}), "iterable dataset"),
        (facts(job={"planned_updates": 25}), "used at most once"),
        (facts(sample_bytes=None), "could not be measured"),
        (facts(sample_bytes=2**40), r"`hasten data convert SOURCE SOURCE.store` \(about 102,400.0 GiB of disk"),
        (facts(epoch_s=1e6), r"minutes: convert them beforehand with `hasten data convert SOURCE SOURCE.store` \(about 97"),
    ),
)  # fmt: skip
