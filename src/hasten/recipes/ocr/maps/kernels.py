"""Compute how far each polygon is shrunk, and the threshold map by the official formula.

D = A (1 - r^2) / L, and 0 for polygons that are not trained on. The threshold map takes one band per edge, squared
distances, and one square root per pixel.

For every edge, the official code fills the whole bounding box of its polygon, with several square roots per pixel. But only
pixels closer than D count, and these form a band along the edge. Over all edges and polygons, the map needs the smallest d /
D, that is, the smallest d^2 / D^2, whose root is taken once at the end.

The formula (DB, `MakeBorderMap.distance`) is not the distance to a segment. A pixel that sees the edge at an angle of at
least 90 degrees (it is inside the circle over the edge) takes the perpendicular distance, any other pixel the distance to
the nearer end. The sign of L^2 - d1^2 - d2^2 decides between the two. It is computed here with the same operations, so the
result never differs.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from hasten.recipes.needed import kernel

MIN_AREA = 1.0
"""In square pixels; the official code ignores smaller polygons."""


@kernel
def measure(  # noqa: PLR0917  a kernel is called by position
    points: npt.NDArray[np.float64],
    offsets: npt.NDArray[np.int64],
    ignored: npt.NDArray[np.bool_],
    worth: float,
    min_size: float,
    distances: npt.NDArray[np.float64],
) -> None:
    """Write the distance D of each polygon in pixels.

    Area and length are summed in the same order as in GEOS, and so in Shapely. D is identical to the last bit, which matters
    because it decides how shrunk corners are rounded.

    Args:
        points: Corners of all polygons [n, 2].
        offsets: Index of each polygon's first corner [k + 1].
        ignored: Polygons that are not trained on [k].
        worth: 1 - r^2.
        min_size: Height and width in pixels below which a polygon is not trained on.
        distances: Output [k]: 0 for polygons that are not trained on.
    """
    for number in range(len(ignored)):
        distances[number] = 0.0
        if ignored[number]:
            continue
        polygon = points[offsets[number] : offsets[number + 1]]
        if _smaller_side(polygon) < min_size:
            continue
        area = _area(polygon)
        if area >= MIN_AREA:
            distances[number] = area * worth / _length(polygon)


@kernel
def _smaller_side(polygon: npt.NDArray[np.float64]) -> float:
    """Return the height or width of a polygon's bounding box, whichever is smaller."""
    left = right = polygon[0, 0]
    top = bottom = polygon[0, 1]
    for i in range(1, len(polygon)):
        left, right = min(left, polygon[i, 0]), max(right, polygon[i, 0])
        top, bottom = min(top, polygon[i, 1]), max(bottom, polygon[i, 1])
    return float(min(right - left, bottom - top))


@kernel
def _area(polygon: npt.NDArray[np.float64]) -> float:
    """Return the unsigned area."""
    count = len(polygon)
    total = 0.0
    for i in range(1, count):
        after = i + 1 if i + 1 < count else 0
        total += (polygon[i, 0] - polygon[0, 0]) * (polygon[i - 1, 1] - polygon[after, 1])
    return abs(total / 2.0)


@kernel
def _length(polygon: npt.NDArray[np.float64]) -> float:
    """Return the length of the closed border."""
    count = len(polygon)
    total = 0.0
    for i in range(count):
        after = i + 1 if i + 1 < count else 0
        along = polygon[after, 0] - polygon[i, 0]
        down = polygon[after, 1] - polygon[i, 1]
        total += math.sqrt(along * along + down * down)
    return total


@kernel
def draw_borders(  # noqa: PLR0917  a kernel is called by position
    points: npt.NDArray[np.float64],
    offsets: npt.NDArray[np.int64],
    distances: npt.NDArray[np.float64],
    boxes: npt.NDArray[np.int64],
    width: int,
    nearest: npt.NDArray[np.float32],
) -> None:
    """Lower each pixel to its smallest d^2 / D^2 over all edges that reach it.

    Args:
        points: Corners of all polygons [n, 2].
        offsets: Index of each polygon's first corner [k + 1].
        distances: D of each polygon in pixels; polygons with 0 are skipped [k].
        boxes: Inclusive left, top, right and bottom of the dilated polygons; nothing is drawn outside [k, 4].
        width: Width of the image.
        nearest: The image row by row, initially 1 everywhere [height * width].
    """
    height = nearest.size // width
    for number in range(len(distances)):
        if not distances[number] > 0.0:
            continue
        left, top = max(boxes[number, 0], 0), max(boxes[number, 1], 0)
        right, bottom = min(boxes[number, 2], width - 1), min(boxes[number, 3], height - 1)
        first, last = offsets[number], offsets[number + 1]
        for i in range(first, last):
            after = i + 1 if i + 1 < last else first
            _draw_edge(
                points[i, 0], points[i, 1], points[after, 0], points[after, 1],
                distances[number], left, top, right, bottom, width, nearest,
            )  # fmt: skip


@kernel
def _draw_edge(  # noqa: PLR0917  a kernel is called by position
    x1: float, y1: float, x2: float, y2: float, distance: float,
    left: int, top: int, right: int, bottom: int, width: int, nearest: npt.NDArray[np.float32],
) -> None:  # fmt: skip
    """Lower the pixels of the band along one edge."""
    along, down = x2 - x1, y2 - y1
    square = (x1 - x2) * (x1 - x2) + (y1 - y2) * (y1 - y2)
    reach = distance * math.sqrt(square)
    left = max(left, math.floor(min(x1, x2) - distance))
    right = min(right, math.ceil(max(x1, x2) + distance))
    top = max(top, math.floor(min(y1, y2) - distance))
    bottom = min(bottom, math.ceil(max(y1, y2) + distance))
    if left > right:
        return
    for y in range(top, bottom + 1):
        start, stop = left, right
        if down != 0.0:  # the part of this row within D of the edge's line
            middle, half = x1 + along * (y - y1) / down, abs(reach / down)
            if middle - half > right or middle + half < left:
                continue
            if middle - half > left:
                start = math.floor(middle - half)
            if middle + half < right:
                stop = math.ceil(middle + half)
        row = nearest[y * width + start : y * width + stop + 1]
        _draw_row(row, start - x1, start - x2, y - y1, y - y2, along, down, square, distance)


@kernel
def _draw_row(  # noqa: PLR0917  a kernel is called by position
    row: npt.NDArray[np.float32], from_x1: float, from_x2: float, from_y1: float, from_y2: float,
    along: float, down: float, square: float, distance: float,
) -> None:  # fmt: skip
    """Lower the pixels of one row, given the offsets of its first pixel from the two ends of the edge."""
    scale = 1.0 / (distance * distance)
    per_cross = scale / square if square > 0.0 else 0.0
    square_y1, square_y2 = from_y1 * from_y1, from_y2 * from_y2
    cross_start = along * from_y1
    for i in range(len(row)):
        dx1, dx2 = from_x1 + i, from_x2 + i
        square1, square2 = dx1 * dx1 + square_y1, dx2 * dx2 + square_y2
        cross = cross_start - down * dx1
        to_end = min(square1, square2) * scale
        value = np.float32(cross * cross * per_cross if square - square1 - square2 >= 0.0 else to_end)
        row[i] = min(row[i], value)


@kernel
def to_thresholds(nearest: npt.NDArray[np.float32], low: np.float32, span: np.float32) -> None:
    """Convert the smallest d^2 / D^2 to thresholds in place: low + span * (1 - d / D)."""
    for i in range(len(nearest)):
        nearest[i] = (np.float32(1.0) - np.sqrt(nearest[i])) * span + low
