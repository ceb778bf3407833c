"""Upshift makes PyTorch training faster, and proves it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from upshift.core.errors import (
    CorruptError,
    DataError,
    GoneError,
    JobError,
    MachineError,
    PlanError,
    TargetError,
    TrialError,
    UpshiftError,
)
from upshift.core.version import __version__

if TYPE_CHECKING:
    from upshift.core.job import Gathered, Job, Loss, Mean, Quality
    from upshift.core.packing import Packing, packed_attention
    from upshift.script.api import attach
    from upshift.script.marks import step

__all__ = [
    "CorruptError",
    "DataError",
    "Gathered",
    "GoneError",
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

_NEED_TORCH = {
    **dict.fromkeys(("Gathered", "Job", "Loss", "Mean", "Quality"), "upshift.core.job"),
    **dict.fromkeys(("Packing", "packed_attention"), "upshift.core.packing"),
    "attach": "upshift.script.api",
    "step": "upshift.script.marks",
}
"""Imported when they are asked for: who launches a script must not import torch."""

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _NEED_TORCH:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_NEED_TORCH[name]), name)
