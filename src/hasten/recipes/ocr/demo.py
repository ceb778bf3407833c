"""A small text-detection job for `hasten demo ocr`: takes minutes, on generated pages."""

from __future__ import annotations

from hasten.recipes.ocr.job import OcrJob
from hasten.recipes.ocr.naive import NaiveOcrJob


class DrawnPages(OcrJob):
    """Text detection on a small number of small pages."""

    size = 224
    batch_size = 4
    num_drawn = 48


class NaiveDrawnPages(NaiveOcrJob, DrawnPages):
    """The same job, written naively."""

    forms = (DrawnPages,)
