"""Text detection (DBNet, Liao et al. 2020): find text in images, as one rectangle or outline per line or word.

`OcrJob` is the job to train. `NaiveOcrJob` is the same job written in the usual way; it is the baseline. Set your images and
labels in a subclass::

    from hasten.recipes.ocr import OcrJob


    class Receipts(OcrJob):
        images = "receipts/images"
        labels = "receipts/labels"
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hasten.recipes.ocr.job import OcrJob
    from hasten.recipes.ocr.naive import NaiveOcrJob

__all__ = ["NaiveOcrJob", "OcrJob"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from hasten.recipes.ocr import job, naive  # noqa: PLC0415  torch is imported on first use of a job

        return naive.NaiveOcrJob if name == "NaiveOcrJob" else job.OcrJob
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
