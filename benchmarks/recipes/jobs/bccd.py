"""Blood cells (BCCD): 205 microscope images for training and 87 for validation, in the data set's own split.

hasten tune benchmarks/recipes/jobs/bccd.py:NaiveBccdJob --budget 175m --without optimizer_batch --out hasten-out
hasten run benchmarks/recipes/jobs/bccd.py:BccdJob --plan hasten-out/hasten.toml --out hasten-run
"""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path

from hasten.core.errors import MachineError
from hasten.recipes.detection.augment import Augmentation
from hasten.recipes.detection.job import DetectionJob
from hasten.recipes.detection.labels import Labelled, read_labels
from hasten.recipes.detection.naive import NaiveDetectionJob
from hasten.recipes.findings import Findings

FOLDER = Path(os.environ.get("HASTEN_DATA") or Path(__file__).resolve().parents[4] / "shared" / "data") / "bccd"
"""As benchmarks/public_data.py, which cannot be imported here: `hasten tune` loads this file by its path."""
AUGMENTATION = Augmentation(upside_down_frac=0.5)
"""Microscope images have no preferred orientation."""


class BccdJob(DetectionJob):
    """Blood cells, in the data set's own split."""

    images = str(FOLDER / "images")
    labels = str(FOLDER / "annotations")
    size = 320
    model_size = "nano"
    epochs = 30
    augmentation = AUGMENTATION

    @cached_property
    def labelled(self) -> tuple[Labelled, Labelled]:
        """The training and the validation images.

        Raises:
            MachineError: The data set is missing.
            DataError: It is corrupt.
        """
        if not FOLDER.is_dir():
            raise MachineError(f"the blood cells are not in {FOLDER}: get Shenggan/BCCD_Dataset, and put it there.")
            # Two boxes in two images have no area; the data set has no other problems.
        known = read_labels(FOLDER / "images", FOLDER / "annotations", Findings(), max_bad_frac=0.01)
        train, valid = ((FOLDER / "splits" / f"{name}.txt").read_text(encoding="utf-8").split() for name in ("train", "val"))
        return known.only(train), known.only(valid)


class NaiveBccdJob(NaiveDetectionJob, BccdJob):
    """The same job, written naively."""

    forms = (BccdJob,)
