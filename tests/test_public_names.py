"""The public names that users' code may rely on. Adding one is a visible decision."""

from __future__ import annotations

import subprocess
import sys

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
    assert set(NAMES) <= set(dir(hasten))
    assert all(hasattr(hasten, name) for name in NAMES)
    assert dir(hasten) == NAMES


def test_listing_the_public_names_does_not_import_torch() -> None:
    code = "import sys, hasten; print(*dir(hasten)); assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == NAMES


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
