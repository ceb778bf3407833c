"""The public names: what a user's code may rely on. Growth is a visible decision."""

from __future__ import annotations

import hasten
from hasten import data

NAMES = [
    "CorruptError",
    "DataError",
    "Gathered",
    "GoneError",
    "HastenError",
    "Job",
    "JobError",
    "Loss",
    "MachineError",
    "Mean",
    "Packing",
    "PlanError",
    "Quality",
    "TargetError",
    "TrialError",
    "__version__",
    "attach",
    "packed_attention",
    "step",
]


def test_the_public_names_are_these() -> None:
    assert hasten.__all__ == NAMES
    assert all(hasattr(hasten, name) for name in NAMES)


DATA_NAMES = [
    "Batch",
    "DecodeImages",
    "MixedStream",
    "PackedStream",
    "Patience",
    "ShardWriter",
    "Store",
    "StoreWriter",
    "Stream",
    "Url",
    "publish_written",
]


def test_the_public_names_of_the_data_layer_are_these() -> None:
    assert data.__all__ == DATA_NAMES
    assert all(hasattr(data, name) for name in DATA_NAMES)
