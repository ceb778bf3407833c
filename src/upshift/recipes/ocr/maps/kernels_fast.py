"""Masks and thresholds from one signed distance a polygon: no clipper, no filler, one pass over the rows of its box.

In every row of a polygon's box, each edge lowers the distances of the pixels in its band; the crossings of the row with the
edges say which pixels lie inside. A pixel at depth D or more is shrunk text, one inside or nearer than D outside is where
the threshold is trained. Polygons with integer corners are filled with their borders, which is half a pixel more on each
side; so is this.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from upshift.recipes.ocr.maps.compiled import kernel

BORDER = 0.5
"""Pixels that a filled polygon reaches beyond its border."""
FAR = np.float32(1e30)
"""A squared distance that no edge has."""


@kernel
def draw_distances(  # noqa: PLR0917  a kernel is called by position
    points: npt.NDArray[np.float64],
    offsets: npt.NDArray[np.int64],
    distances: npt.NDArray[np.float64],
    width: int,
    nearest: npt.NDArray[np.float32],
    shrink: npt.NDArray[np.uint8],
    thresh_mask: npt.NDArray[np.uint8],
    drawn: npt.NDArray[np.int64],
) -> None:
    """Draw all polygons.

    Args:
        points: Corners of all polygons [n, 2].
        offsets: Where each begins [k + 1].
        distances: Their D in pixels; polygons of 0 are left out [k].
        width: Of the picture.
        nearest: Lowered to the smallest d^2 / D^2, to begin with 1 everywhere [height * width].
        shrink: 1 is written in shrunk text, to begin with 0 everywhere [height * width].
        thresh_mask: 1 is written in dilated text, to begin with 0 everywhere [height * width].
        drawn: Written [k]: pixels of each polygon's shrunk text; what lies outside the picture counts as one.
    """
    longest = 0
    for number in range(len(distances)):
        longest = max(longest, offsets[number + 1] - offsets[number])
    crossings = np.empty(longest, np.float64)
    depths = np.empty(width, np.float32)
    for number in range(len(distances)):
        drawn[number] = 0
        if distances[number] > 0.0:
            polygon = points[offsets[number] : offsets[number + 1]]
            drawn[number] = _draw_polygon(polygon, distances[number], width, nearest, shrink, thresh_mask, crossings, depths)


@kernel
def _draw_polygon(  # noqa: PLR0917  a kernel is called by position
    polygon: npt.NDArray[np.float64], distance: float, width: int, nearest: npt.NDArray[np.float32],
    shrink: npt.NDArray[np.uint8], thresh_mask: npt.NDArray[np.uint8],
    crossings: npt.NDArray[np.float64], depths: npt.NDArray[np.float32],
) -> int:  # fmt: skip
    """Draw one polygon, row by row; how many pixels its shrunk text has."""
    low_x = high_x = polygon[0, 0]
    low_y = high_y = polygon[0, 1]
    for i in range(1, len(polygon)):
        low_x, high_x = min(low_x, polygon[i, 0]), max(high_x, polygon[i, 0])
        low_y, high_y = min(low_y, polygon[i, 1]), max(high_y, polygon[i, 1])
    margin = distance + BORDER
    left, top = math.floor(low_x - margin), math.floor(low_y - margin)
    right, bottom = math.ceil(high_x + margin), math.ceil(high_y + margin)
    count = 1 if left < 0 or top < 0 or right >= width or bottom >= nearest.size // width else 0
    left, top = max(left, 0), max(top, 0)
    right, bottom = min(right, width - 1), min(bottom, nearest.size // width - 1)
    if left > right:
        return count
    core = np.float32((max(distance - BORDER, 0.0) / distance) ** 2)
    grown = np.float32((margin / distance) ** 2)
    for y in range(top, bottom + 1):
        row = depths[: right - left + 1]
        row[:] = FAR
        num_crossings = _draw_edges(polygon, y, left, margin, 1.0 / (distance * distance), row, crossings)
        start = y * width + left
        _draw_outside(row, grown, nearest[start : start + len(row)], thresh_mask[start : start + len(row)])
        for i in range(0, num_crossings - 1, 2):
            if crossings[i] > right or crossings[i + 1] < left:
                continue
            first, last = max(left, math.ceil(crossings[i])), min(right, math.floor(crossings[i + 1]))
            if first <= last:
                begin, end = y * width + first, y * width + last + 1
                inside = row[first - left : last - left + 1]
                count += _draw_inside(inside, core, shrink[begin:end], thresh_mask[begin:end])
    return count


@kernel
def _draw_edges(  # noqa: PLR0917  a kernel is called by position
    polygon: npt.NDArray[np.float64], y: int, left: int, margin: float, scale: float,
    row: npt.NDArray[np.float32], crossings: npt.NDArray[np.float64],
) -> int:  # fmt: skip
    """Lower a row to its smallest d^2 / D^2, and write where edges cross it, from left to right; how many do."""
    right = left + len(row) - 1
    num_crossings = 0
    for i in range(len(polygon)):
        after = i + 1 if i + 1 < len(polygon) else 0
        x1, y1, x2, y2 = polygon[i, 0], polygon[i, 1], polygon[after, 0], polygon[after, 1]
        if min(y1, y2) - margin > y or max(y1, y2) + margin < y:
            continue
        along, down = x2 - x1, y2 - y1
        start, stop = max(left, math.floor(min(x1, x2) - margin)), min(right, math.ceil(max(x1, x2) + margin))
        if down != 0.0:  # the part of this row that lies within reach of the edge's line
            middle, half = x1 + along * (y - y1) / down, abs(margin * math.sqrt(along * along + down * down) / down)
            if middle - half > start:
                start = stop + 1 if middle - half > stop else math.floor(middle - half)
            if middle + half < stop:
                stop = start - 1 if middle + half < start else math.ceil(middle + half)
            if (y1 <= y) != (y2 <= y):
                num_crossings = _insert(crossings, num_crossings, middle)
        if start <= stop:
            _draw_row(row[start - left : stop - left + 1], start - x1, y - y1, along, down, scale)
    return num_crossings


@kernel
def _insert(values: npt.NDArray[np.float64], count: int, value: float) -> int:
    """Insert into values that rise; how many there are now."""
    at = count
    while at > 0 and values[at - 1] > value:
        values[at] = values[at - 1]
        at -= 1
    values[at] = value
    return count + 1


@kernel
def _draw_row(row: npt.NDArray[np.float32], from_x: float, from_y: float, along: float, down: float, scale: float) -> None:  # noqa: PLR0917  a kernel is called by position
    """Lower the pixels of a row, whose first stands so far from the edge's beginning, to the edge's d^2 / D^2."""
    square = along * along + down * down
    zero, one = np.float32(0.0), np.float32(1.0)
    inverse = np.float32(1.0 / square) if square > 0.0 else zero
    x0, y0, ex, ey, factor = np.float32(from_x), np.float32(from_y), np.float32(along), np.float32(down), np.float32(scale)
    part = y0 * ey
    for i in range(len(row)):
        x = x0 + np.float32(i)
        along_edge = min(max((x * ex + part) * inverse, zero), one)
        dx, dy = x - along_edge * ex, y0 - along_edge * ey
        value = (dx * dx + dy * dy) * factor
        row[i] = min(row[i], value)


@kernel
def _draw_outside(
    row: npt.NDArray[np.float32],
    grown: np.float32,
    nearest: npt.NDArray[np.float32],
    thresh_mask: npt.NDArray[np.uint8],
) -> None:
    """What holds on both sides of a border: the threshold, and the band in which it is trained."""
    one = np.uint8(1)
    for i in range(len(row)):
        nearest[i] = min(nearest[i], row[i])
        thresh_mask[i] = one if row[i] <= grown else thresh_mask[i]


@kernel
def _draw_inside(
    row: npt.NDArray[np.float32],
    core: np.float32,
    shrink: npt.NDArray[np.uint8],
    thresh_mask: npt.NDArray[np.uint8],
) -> int:
    """What holds inside alone: the shrunk text; how many pixels of it."""
    one = np.uint8(1)
    count = 0
    for i in range(len(row)):
        shrink[i] = one if row[i] >= core else shrink[i]
        thresh_mask[i] = one
        count += 1 if row[i] >= core else 0
    return count
