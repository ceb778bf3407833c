"""Text detection (DBNet, Liao et al. 2020): where in a picture text stands, as one rectangle or outline a line or word.

`OcrJob` is the job to train; `NaiveOcrJob` is the same job as it is usually written, the baseline. Point it at pictures and
labels by a subclass::

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
        from hasten.recipes.ocr import job, naive  # noqa: PLC0415  torch is loaded when a job is asked for

        return naive.NaiveOcrJob if name == "NaiveOcrJob" else job.OcrJob
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
