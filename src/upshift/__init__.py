"""Upshift makes PyTorch training faster, and proves it."""

from upshift.core.errors import JobError, MachineError, PlanError, TargetError, TrialError, UpshiftError
from upshift.core.job import Job, Loss, Mean, Quality

__version__ = "0.1.0"

__all__ = [
    "Job",
    "JobError",
    "Loss",
    "MachineError",
    "Mean",
    "PlanError",
    "Quality",
    "TargetError",
    "TrialError",
    "UpshiftError",
    "__version__",
]
