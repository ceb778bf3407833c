"""Test case of channels_last."""

from __future__ import annotations

from hasten.optimizations.channels_last import ChannelsLast
from tests.optimizations.contract import Case, Images, facts

CASE = Case(
    make=ChannelsLast, job=Images, facts=facts(),
    refused=(
        (facts(job={"module_counts": {"Conv1d": 1}}), "no 2-d convolution"),
        (facts(job={"module_counts": {"Conv2d": 1, "Conv3d": 1}}), "also has 3-d convolutions"),
    ),
)  # fmt: skip
