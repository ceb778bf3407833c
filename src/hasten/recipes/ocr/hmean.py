"""How many texts were found: boxes against labels by the rules of ICDAR 2015 (intersection over union).

A box and a label match where their intersection is at least half of their union; each belongs to one match at most, labels
taken in their order and boxes in theirs. Labels that are ignored count for nothing, and neither do boxes that lie on one by
more than half of their own area. H-mean = 2 matched / (labels + boxes), over all pictures together.

`naive_counts` does it with shapely, pair by pair; `fast_counts` looks at pairs whose bounds meet and clips polygons in a
compiled kernel. Both count the same. `outline_counts` counts outlines of any shape so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hasten.recipes.needed import compiled, needed
from hasten.recipes.ocr.maps import PolygonArray

IOU = 0.5
"""The least intersection over union of a match."""
ON_IGNORED = 0.5
"""A box with more than this share of its area on an ignored label counts for nothing."""


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


def naive_counts(found: npt.NDArray[np.float32], truth: PolygonArray) -> Counts:
    """Count the matches of one picture, pair by pair.

    Args:
        found: Corners of the boxes, `[n, 4, 2]`.
        truth: The labels.

    Raises:
        MachineError: shapely is not installed.
    """
    make = needed("shapely").Polygon
    labels: list[Any] = [make(truth.polygon(number)) for number in range(len(truth))]
    boxes: list[Any] = [make(corners) for corners in found]
    overlap = [[box.intersection(label).area for box in boxes] for label in labels]
    return _counted(overlap, [label.area for label in labels], [box.area for box in boxes], truth.ignored.tolist())


def outline_counts(found: PolygonArray, truth: PolygonArray) -> Counts:
    """Count the matches of one picture whose texts were found as outlines; only pairs that touch are looked at.

    Args:
        found: The outlines.
        truth: The labels.

    Raises:
        MachineError: shapely is not installed.
    """
    shapely = needed("shapely")
    labels, outlines = _shapes(truth), _shapes(found)
    overlap = np.zeros((len(labels), len(outlines)))
    at, number = shapely.STRtree(outlines).query(labels, predicate="intersects")
    overlap[at, number] = shapely.area(shapely.intersection(labels[at], outlines[number]))
    return _counted(overlap.tolist(), shapely.area(labels).tolist(), shapely.area(outlines).tolist(), truth.ignored.tolist())


def _shapes(polygons: PolygonArray) -> npt.NDArray[Any]:
    """Polygons as shapely has them; those that cross themselves mended."""
    shapely = needed("shapely")
    rings = shapely.linearrings(polygons.points, indices=np.repeat(np.arange(len(polygons)), np.diff(polygons.offsets)))
    shapes: npt.NDArray[Any] = shapely.polygons(rings)
    valid = shapely.is_valid(shapes)
    return shapes if valid.all() else np.where(valid, shapes, shapely.make_valid(shapes))


def _counted(overlap: list[list[float]], label_area: list[float], box_area: list[float], ignored: list[bool]) -> Counts:
    """Match labels and boxes, both in their order.

    Args:
        overlap: Area of the intersection of each label with each box.
        label_area: Of each label.
        box_area: Of each box.
        ignored: Which labels count for nothing.
    """
    ignored_box = [
        area > 0 and any(ignored[at] and overlap[at][number] / area > ON_IGNORED for at in range(len(ignored)))
        for number, area in enumerate(box_area)
    ]
    taken = [False] * len(box_area)
    matched = 0
    for at, area in enumerate(label_area):
        if ignored[at]:
            continue
        for number, other in enumerate(box_area):
            if taken[number] or ignored_box[number]:
                continue
            union = area + other - overlap[at][number]
            if union > 0 and overlap[at][number] / union >= IOU:
                taken[number] = True
                matched += 1
                break
    return Counts(matched, len(label_area) - sum(ignored), len(box_area) - sum(ignored_box))


def fast_counts(found: npt.NDArray[np.float32], truth: PolygonArray) -> Counts:
    """Count the matches of one picture in a compiled kernel.

    Args:
        found: Corners of the boxes, `[n, 4, 2]`; each box must be convex.
        truth: The labels, of any simple shape.

    Raises:
        MachineError: Numba is not installed.
    """
    boxes = np.ascontiguousarray(found, dtype=np.float64).reshape(-1, 4, 2)
    points = np.ascontiguousarray(truth.points, dtype=np.float64)
    offsets, ignored = np.asarray(truth.offsets, dtype=np.int64), np.asarray(truth.ignored, dtype=np.bool_)
    matched, num_truth, num_found = compiled(count_matches)(boxes, points, offsets, ignored, IOU, ON_IGNORED)
    return Counts(int(matched), int(num_truth), int(num_found))


def count_matches(  # noqa: C901, PLR0912, PLR0915, PLR0917  one kernel: Numba calls no plain Python
    boxes: npt.NDArray[np.float64],
    points: npt.NDArray[np.float64],
    offsets: npt.NDArray[np.int64],
    ignored: npt.NDArray[np.bool_],
    least_iou: float,
    on_ignored: float,
) -> tuple[int, int, int]:
    """Matches, labels and boxes that count. Compiled where it is used.

    Labels are clipped by the box's edges, one after another (Sutherland and Hodgman 1974), which is right for a convex box
    and a label of any shape.

    Args:
        boxes: `[n, 4, 2]`.
        points: Corners of the labels, `[m, 2]`.
        offsets: Where each label begins, `[k + 1]`.
        ignored: `[k]`.
        least_iou: Of a match.
        on_ignored: The share of a box's area on an ignored label from which on it does not count.
    """
    num_boxes, num_labels = len(boxes), len(ignored)
    most = 4
    for at in range(num_labels):
        most = max(most, offsets[at + 1] - offsets[at])
    room = 6 * most + 16  # each of four cuts adds half of the corners at most
    corners, cut = np.empty((room, 2)), np.empty((room, 2))
    overlap = np.zeros((num_labels, num_boxes))
    label_area, box_area = np.zeros(num_labels), np.zeros(num_boxes)
    for number in range(num_boxes):
        twice = 0.0
        for i in range(4):
            j = (i + 1) % 4
            twice += boxes[number, i, 0] * boxes[number, j, 1] - boxes[number, j, 0] * boxes[number, i, 1]
        box_area[number] = twice / 2  # its sign says which way round the box goes
    for at in range(num_labels):
        first, count = offsets[at], offsets[at + 1] - offsets[at]
        twice = 0.0
        low_x, low_y, high_x, high_y = np.inf, np.inf, -np.inf, -np.inf
        for i in range(count):
            j = (i + 1) % count
            x, y = points[first + i, 0], points[first + i, 1]
            twice += x * points[first + j, 1] - points[first + j, 0] * y
            low_x, low_y, high_x, high_y = min(low_x, x), min(low_y, y), max(high_x, x), max(high_y, y)
        label_area[at] = abs(twice) / 2
        for number in range(num_boxes):
            box = boxes[number]
            if (
                box[:, 0].max() <= low_x
                or box[:, 0].min() >= high_x
                or box[:, 1].max() <= low_y
                or box[:, 1].min() >= high_y
            ):
                continue
            side = 1.0 if box_area[number] >= 0 else -1.0
            num = count
            for i in range(count):
                corners[i, 0], corners[i, 1] = points[first + i, 0], points[first + i, 1]
            for edge in range(4):
                start_x, start_y = box[edge, 0], box[edge, 1]
                along_x, along_y = box[(edge + 1) % 4, 0] - start_x, box[(edge + 1) % 4, 1] - start_y
                num_cut = 0
                for i in range(num):
                    before = num - 1 if i == 0 else i - 1
                    deep = side * (along_x * (corners[i, 1] - start_y) - along_y * (corners[i, 0] - start_x))
                    deep_before = side * (
                        along_x * (corners[before, 1] - start_y) - along_y * (corners[before, 0] - start_x)
                    )
                    if (deep >= 0) != (deep_before >= 0):
                        share = deep_before / (deep_before - deep)
                        cut[num_cut, 0] = corners[before, 0] + share * (corners[i, 0] - corners[before, 0])
                        cut[num_cut, 1] = corners[before, 1] + share * (corners[i, 1] - corners[before, 1])
                        num_cut += 1
                    if deep >= 0:
                        cut[num_cut, 0], cut[num_cut, 1] = corners[i, 0], corners[i, 1]
                        num_cut += 1
                corners, cut, num = cut, corners, num_cut
            twice = 0.0
            for i in range(num):
                j = (i + 1) % num
                twice += corners[i, 0] * corners[j, 1] - corners[j, 0] * corners[i, 1]
            overlap[at, number] = abs(twice) / 2
    box_area = np.abs(box_area)
    ignored_box, taken = np.zeros(num_boxes, dtype=np.bool_), np.zeros(num_boxes, dtype=np.bool_)
    num_truth, matched = 0, 0
    for at in range(num_labels):
        if not ignored[at]:
            num_truth += 1
            continue
        for number in range(num_boxes):
            if box_area[number] > 0 and overlap[at, number] / box_area[number] > on_ignored:
                ignored_box[number] = True
    for at in range(num_labels):
        if ignored[at]:
            continue
        for number in range(num_boxes):
            if taken[number] or ignored_box[number]:
                continue
            union = label_area[at] + box_area[number] - overlap[at, number]
            if union > 0 and overlap[at, number] / union >= least_iou:
                taken[number] = True
                matched += 1
                break
    return matched, num_truth, num_boxes - ignored_box.sum()
