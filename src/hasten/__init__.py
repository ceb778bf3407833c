"""Make PyTorch training faster, and prove it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hasten.core import own_imports

own_imports.install()

from hasten.core.errors import (  # noqa: E402 - must come after `install`
    CorruptError,
    DataError,
    GoneError,
    HastenError,
    JobError,
    MachineError,
    PlanError,
    TargetError,
    TrialError,
)
from hasten.core.version import __version__  # noqa: E402 - as above

if TYPE_CHECKING:
    from hasten.core.job import Gathered, Job, Loss, Mean, Quality
    from hasten.core.packing import Packing, packed_attention
    from hasten.script.attach import attach
    from hasten.script.steps import step

__all__ = [
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

_NEED_TORCH = {
    **dict.fromkeys(("Gathered", "Job", "Loss", "Mean", "Quality"), "hasten.core.job"),
    **dict.fromkeys(("Packing", "packed_attention"), "hasten.core.packing"),
    "attach": "hasten.script.attach",
    "step": "hasten.script.steps",
}
"""Names imported on first use, because the process that launches a script must not import torch."""


def __dir__() -> list[str]:
    return sorted(__all__)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _NEED_TORCH:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_NEED_TORCH[name]), name)
