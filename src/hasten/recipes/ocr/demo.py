"""The text-detection job made small, for `hasten demo ocr`: minutes, not hours, on generated pages."""

from __future__ import annotations

from hasten.recipes.ocr.job import OcrJob
from hasten.recipes.ocr.naive import NaiveOcrJob


class DrawnPages(OcrJob):
    """Few and small pages."""

    size = 224
    batch_size = 4
    num_drawn = 48


class NaiveDrawnPages(NaiveOcrJob, DrawnPages):
    """The same, written the naive way."""

    forms = (DrawnPages,)
