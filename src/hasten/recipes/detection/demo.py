"""The detection job made small, for `hasten demo detection`: minutes, not hours, on generated banknotes."""

from __future__ import annotations

from hasten.recipes.detection.job import DetectionJob
from hasten.recipes.detection.naive import NaiveDetectionJob


class DrawnNotes(DetectionJob):
    """Few and small pictures of banknotes."""

    size = 160
    batch_size = 8
    num_drawn = 96


class NaiveDrawnNotes(NaiveDetectionJob, DrawnNotes):
    """The same, written the naive way."""

    forms = (DrawnNotes,)
