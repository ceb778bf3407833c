"""Upshift makes PyTorch training faster, and proves it."""

from upshift.core.errors import JobError, MachineError, PlanError, TargetError, TrialError, UpshiftError
from upshift.core.job import Job, Loss, Mean, Quality
from upshift.core.packing import Packing, packed_attention

__version__ = "0.1.0"

__all__ = [
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
    "packed_attention",
]
