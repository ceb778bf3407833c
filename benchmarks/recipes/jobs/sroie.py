"""Receipts (SROIE): 80 scans for training and 40 for validation, text lines as quads.

hasten tune benchmarks/recipes/jobs/sroie.py:NaiveSroieJob --budget 175m --without optimizer_batch --out hasten-out
hasten run benchmarks/recipes/jobs/sroie.py:SroieJob --plan hasten-out/hasten.toml --out hasten-run

A scan is up to 2,748 pixels high, and its smallest lines 11. Fitted into 640 x 448 they are 4 to 6 pixels high, so texts are
shrunk by less than the paper's 0.4: the remainder of a line must be thicker than a pixel. Training uses crops of 512 x 384,
most of a receipt, slightly rotated and scaled.
"""

from __future__ import annotations

import os
from pathlib import Path

from hasten.recipes.ocr.augment import AugmentSettings
from hasten.recipes.ocr.job import OcrJob
from hasten.recipes.ocr.naive import NaiveOcrJob

FOLDER = Path(os.environ.get("HASTEN_DATA") or Path(__file__).resolve().parents[4] / "shared" / "data") / "sroie"
"""As benchmarks/public_data.py, which cannot be imported here: `hasten tune` loads this file by its path."""


class SroieJob(OcrJob):
    """The receipts, with a third held out for validation."""

    images = str(FOLDER / "images")
    labels = str(FOLDER / "boxes")
    valid_frac = 1 / 3
    size = (640, 448)
    crop = (512, 384)
    width = 16
    shrink_ratio = 0.6
    min_text_size = 3.0
    augment = AugmentSettings(rotate_degrees=2, shear_degrees=1, scale=(0.8, 1.3), blur=0.1, noise=0.1)
    batch_size = 4
    epochs = 30
    rate = 2e-3


class NaiveSroieJob(NaiveOcrJob, SroieJob):
    """The same job, written naively."""

    forms = (SroieJob,)
