"""The detection job made small, for `hasten demo detection`: minutes, not hours, on drawn banknotes."""

from __future__ import annotations

from hasten.recipes.detection.job import DetectionJob, NaiveDetectionJob


class _Small(NaiveDetectionJob):
    """Few and small pictures."""

    size = 160
    batch_size = 8
    num_drawn = 96


class DrawnNotes(_Small, DetectionJob):
    """Banknotes, found as they should be."""


class NaiveDrawnNotes(_Small):
    """Banknotes, found the naive way; the other form is `DrawnNotes`."""

    forms = (DrawnNotes,)
