"""The public names: what a user's code may rely on. Growth is a visible decision."""

from __future__ import annotations

import upshift

NAMES = [
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
    "UpshiftError",
    "__version__",
    "attach",
    "packed_attention",
    "step",
]


def test_the_public_names_are_these() -> None:
    assert upshift.__all__ == NAMES
    assert all(hasattr(upshift, name) for name in NAMES)
