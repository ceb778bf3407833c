"""The text-detection job made small, for `hasten demo ocr`: minutes, not hours, on drawn pages."""

from __future__ import annotations

from hasten.recipes.ocr.job import NaiveOcrJob, OcrJob


class _Small(NaiveOcrJob):
    """Few and small pictures."""

    size = 224
    batch_size = 4
    num_drawn = 48


class DrawnPages(_Small, OcrJob):
    """Pages, read as they should be."""


class NaiveDrawnPages(_Small):
    """Pages, read the naive way; the other form is `DrawnPages`."""

    forms = (DrawnPages,)
