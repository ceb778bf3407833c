"""Object detection: a detector in plain PyTorch, its job, and generated images to try it on.

`DetectionJob` is the job to use: subclass it and set your folders. `NaiveDetectionJob` trains the same model on the same
data in the usual way; it is the baseline for measuring gains. All names are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hasten.recipes.detection.export import export_onnx
    from hasten.recipes.detection.job import DetectionJob
    from hasten.recipes.detection.naive import NaiveDetectionJob
    from hasten.recipes.detection.phases import FrozenBackbone, Phase, train_phases

__all__ = ["DetectionJob", "FrozenBackbone", "NaiveDetectionJob", "Phase", "export_onnx", "train_phases"]

_HOMES = {
    "DetectionJob": "job",
    "NaiveDetectionJob": "naive",
    "FrozenBackbone": "phases",
    "Phase": "phases",
    "train_phases": "phases",
    "export_onnx": "export",
}


def __getattr__(name: str) -> Any:
    """Import a name of `__all__` on first use: torch and the extras take seconds to import."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
