"""How many texts were found: boxes against labels by the rules of ICDAR 2015 (intersection over union).

A box and a label match where their intersection is at least half of their union; each belongs to one match at most, labels
taken in their order and boxes in theirs. Labels that are ignored count for nothing, and neither do boxes that lie on one by
more than half of their own area. H-mean = 2 matched / (labels + boxes), over all pictures together.
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
"""The least intersection over union of a match."""
ON_IGNORED = 0.5
"""A box with more than this share of its area on an ignored label counts for nothing."""
_NEVER_ZERO = 1e-9
"""Added to weights: a pass in which nothing at all was found has the precision 0, and is no error."""


@dataclass(frozen=True)
class Counts:
    """What was counted; ignored labels, and boxes on them, left out.

    Attributes:
        matched: Pairs of a label and a box.
        num_truth: Labels.
        num_found: Boxes.
    """

    matched: int
    num_truth: int
    num_found: int

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.matched + other.matched, self.num_truth + other.num_truth, self.num_found + other.num_found)

    @property
    def hmean(self) -> float:
        """2 matched / (labels + boxes); 0 where there are none of either."""
        return 2 * self.matched / max(self.num_truth + self.num_found, 1)


def count_matches(found: PolygonArray, truth: PolygonArray) -> Counts:
    """Count the matches of one picture; only pairs that touch are looked at.

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
            matches[:, free[0]] = False  # each belongs to one match at most
            matched += 1
    return Counts(matched, int(np.count_nonzero(~truth.ignored)), int(np.count_nonzero(counts)))


def count_texts(texts: Texts, truth: PolygonArray) -> Counts:
    """The matches of the texts and labels of one picture.

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
    """The metrics of a batch.

    Args:
        probability: Of text, `float32 [batch, height, width]`.
        truth: The labels of each picture.
        polygon_ms: What the targets of each picture took, in milliseconds.
        find: Finds the texts of one picture.
        count: Counts the matches of texts and labels.

    Returns:
        `hmean`, `precision` and `recall`, from 0 to 1, over all texts together; `polygon_ms`, `postprocess_ms` and
        `metric_ms`, milliseconds a picture.
    """
    counts, postprocess_s, metric_s = Counts(0, 0, 0), 0.0, 0.0
    for one, labels in zip(probability, truth, strict=True):
        start = time.perf_counter()
        texts = find(one)
        middle = time.perf_counter()
        counts += count(texts, labels)
        postprocess_s += middle - start
        metric_s += time.perf_counter() - middle
    pictures = len(truth)
    return {
        "hmean": Mean(2 * counts.matched, counts.num_truth + counts.num_found + _NEVER_ZERO),
        "precision": Mean(counts.matched, counts.num_found + _NEVER_ZERO),
        "recall": Mean(counts.matched, counts.num_truth + _NEVER_ZERO),
        "polygon_ms": Mean(float(sum(polygon_ms)), pictures),
        "postprocess_ms": Mean(1e3 * postprocess_s, pictures),
        "metric_ms": Mean(1e3 * metric_s, pictures),
    }


def _shapes(polygons: PolygonArray) -> npt.NDArray[Any]:
    """Polygons as shapely has them; those that cross themselves mended."""
    shapely = needed("shapely")
    rings = shapely.linearrings(polygons.points, indices=np.repeat(np.arange(len(polygons)), np.diff(polygons.offsets)))
    shapes: npt.NDArray[Any] = shapely.polygons(rings)
    valid = shapely.is_valid(shapes)
    return shapes if valid.all() else np.where(valid, shapes, shapely.make_valid(shapes))
