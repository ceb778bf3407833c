"""Count detected texts: boxes against labels by the rules of ICDAR 2015 (intersection over union).

A box and a label match if their intersection is at least half of their union. Each belongs to at most one match; labels and
boxes are matched in order. Ignored labels do not count, and neither do boxes with more than half of their area on an ignored
label. H-mean = 2 matched / (labels + boxes), over all images together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hasten.core.job import Mean
from hasten.recipes.needed import needed
from hasten.recipes.ocr.maps import PolygonArray
from hasten.recipes.ocr.postprocess import Floats, Texts

IOU = 0.5
"""Smallest intersection over union of a match."""
ON_IGNORED = 0.5
"""A box with more than this fraction of its area on an ignored label does not count."""
_NEVER_ZERO = 1e-9
"""Added to weights, so that a pass without any detection has precision 0 instead of raising an error."""


@dataclass(frozen=True)
class Counts:
    """Counts of labels, boxes and matches, without ignored labels and the boxes on them.

    Attributes:
        matched: Number of pairs of a label and a box.
        num_truth: Number of labels.
        num_found: Number of boxes.
    """

    matched: int
    num_truth: int
    num_found: int

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.matched + other.matched, self.num_truth + other.num_truth, self.num_found + other.num_found)

    @property
    def hmean(self) -> float:
        """2 matched / (labels + boxes); 0 if there are neither."""
        return 2 * self.matched / max(self.num_truth + self.num_found, 1)


def count_matches(found: PolygonArray, truth: PolygonArray) -> Counts:
    """Count the matches of one image; only pairs that intersect are compared.

    Args:
        found: Boxes or outlines.
        truth: The labels.

    Raises:
        MachineError: shapely is not installed.
    """
    shapely = needed("shapely")
    labels, outlines = _shapes(truth), _shapes(found)
    overlap = np.zeros((len(labels), len(outlines)))
    label, outline = shapely.STRtree(outlines).query(labels, predicate="intersects")
    overlap[label, outline] = shapely.area(shapely.intersection(labels[label], outlines[outline]))
    label_area, area = shapely.area(labels), shapely.area(outlines)
    counts = ~(overlap[truth.ignored] > ON_IGNORED * area).any(axis=0)
    matches = (overlap > 0) & (overlap >= IOU * (label_area[:, None] + area - overlap)) & counts
    matched = 0
    for number in np.flatnonzero(~truth.ignored & matches.any(axis=1)):
        free = np.flatnonzero(matches[number])
        if len(free):
            matches[:, free[0]] = False  # each box belongs to at most one match
            matched += 1
    return Counts(matched, int(np.count_nonzero(~truth.ignored)), int(np.count_nonzero(counts)))


def count_texts(texts: Texts, truth: PolygonArray) -> Counts:
    """Count the matches between the texts and the labels of one image.

    Raises:
        MachineError: shapely is not installed.
    """
    return count_matches(PolygonArray.from_list(texts.shapes), truth)


def measured(
    probability: Floats,
    truth: Sequence[PolygonArray],
    polygon_ms: Sequence[float],
    *,
    find: Callable[[Floats], Texts],
    count: Callable[[Texts, PolygonArray], Counts],
) -> dict[str, Mean]:
    """Compute the metrics of a batch.

    Args:
        probability: Probability of text, `float32 [batch, height, width]`.
        truth: The labels of each image.
        polygon_ms: Time of each image's targets in milliseconds.
        find: Finds the texts of one image.
        count: Counts the matches between texts and labels.

    Returns:
        `hmean`, `precision` and `recall`, from 0 to 1, over all texts together; `polygon_ms`, `postprocess_ms` and
        `metric_ms`, in milliseconds per image.
    """
    counts, postprocess_s, metric_s = Counts(0, 0, 0), 0.0, 0.0
    for one, labels in zip(probability, truth, strict=True):
        start = time.perf_counter()
        texts = find(one)
        middle = time.perf_counter()
        counts += count(texts, labels)
        postprocess_s += middle - start
        metric_s += time.perf_counter() - middle
    num_images = len(truth)
    return {
        "hmean": Mean(2 * counts.matched, counts.num_truth + counts.num_found + _NEVER_ZERO),
        "precision": Mean(counts.matched, counts.num_found + _NEVER_ZERO),
        "recall": Mean(counts.matched, counts.num_truth + _NEVER_ZERO),
        "polygon_ms": Mean(float(sum(polygon_ms)), num_images),
        "postprocess_ms": Mean(1e3 * postprocess_s, num_images),
        "metric_ms": Mean(1e3 * metric_s, num_images),
    }


def _shapes(polygons: PolygonArray) -> npt.NDArray[Any]:
    """Convert polygons to shapely's; self-intersecting ones are repaired."""
    shapely = needed("shapely")
    rings = shapely.linearrings(polygons.points, indices=np.repeat(np.arange(len(polygons)), np.diff(polygons.offsets)))
    shapes: npt.NDArray[Any] = shapely.polygons(rings)
    valid = shapely.is_valid(shapes)
    return shapes if valid.all() else np.where(valid, shapes, shapely.make_valid(shapes))
