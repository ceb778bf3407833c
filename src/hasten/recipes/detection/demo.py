"""A small detection job for `hasten demo detection`: takes minutes, on generated banknotes."""

from __future__ import annotations

from hasten.recipes.detection.job import DetectionJob
from hasten.recipes.detection.naive import NaiveDetectionJob


class DrawnNotes(DetectionJob):
    """Detection on a small number of small images of banknotes."""

    size = 160
    batch_size = 8
    num_drawn = 96


class NaiveDrawnNotes(NaiveDetectionJob, DrawnNotes):
    """The same job, written naively."""

    forms = (DrawnNotes,)
