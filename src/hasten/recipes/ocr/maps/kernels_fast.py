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

from hasten.recipes.ocr.maps.compiled import kernel

BORDER = 0.5
"""Pixels that a filled polygon reaches beyond its border."""
FAR = np.float32(1e30)
"""A squared distance that no edge has."""
X1, Y1, Y2, ALONG, DOWN, LEFT, RIGHT, TOP, BOTTOM, INVERSE, SLOPE, HALF = range(12)
"""Facts of an edge: where it begins and ends, its run in x and y, the box in its reach, 1 / length^2, its run in x a row,
and half the length of the part of a row that lies in its reach."""
NUM_FACTS = 12


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
    crossings, edges = np.empty(longest, np.float64), np.empty((longest, NUM_FACTS), np.float64)
    depths = np.empty(width, np.float32)
    for number in range(len(distances)):
        drawn[number] = 0
        if distances[number] > 0.0:
            polygon = points[offsets[number] : offsets[number + 1]]
            drawn[number] = _draw_polygon(
                polygon, distances[number], width, nearest, shrink, thresh_mask, edges, crossings, depths
            )


@kernel
def _draw_polygon(  # noqa: PLR0917  a kernel is called by position
    polygon: npt.NDArray[np.float64], distance: float, width: int, nearest: npt.NDArray[np.float32],
    shrink: npt.NDArray[np.uint8], thresh_mask: npt.NDArray[np.uint8],
    edges: npt.NDArray[np.float64], crossings: npt.NDArray[np.float64], depths: npt.NDArray[np.float32],
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
    _describe(polygon, margin, edges)
    scale = np.float32(1.0 / (distance * distance))
    for y in range(top, bottom + 1):
        num_crossings = _draw_edges(edges, len(polygon), y, left, right, scale, depths, crossings)
        start = y * width
        _draw_outside(depths, left, right, start, grown, nearest, thresh_mask)
        for i in range(0, num_crossings - 1, 2):
            if crossings[i] > right or crossings[i + 1] < left:
                continue
            first, last = max(left, math.ceil(crossings[i])), min(right, math.floor(crossings[i + 1]))
            if first <= last:
                count += _draw_inside(depths, first, last, start, core, shrink, thresh_mask)
    return count


@kernel
def _describe(polygon: npt.NDArray[np.float64], margin: float, edges: npt.NDArray[np.float64]) -> None:
    """Write once an edge what its rows need: its facts, in the order of the constants above."""
    for i in range(len(polygon)):
        after = i + 1 if i + 1 < len(polygon) else 0
        x1, y1, x2, y2 = polygon[i, 0], polygon[i, 1], polygon[after, 0], polygon[after, 1]
        along, down = x2 - x1, y2 - y1
        square = along * along + down * down
        edges[i, X1], edges[i, Y1], edges[i, Y2], edges[i, ALONG], edges[i, DOWN] = x1, y1, y2, along, down
        edges[i, LEFT], edges[i, RIGHT] = math.floor(min(x1, x2) - margin), math.ceil(max(x1, x2) + margin)
        edges[i, TOP], edges[i, BOTTOM] = min(y1, y2) - margin, max(y1, y2) + margin
        edges[i, INVERSE] = 1.0 / square if square > 0.0 else 0.0
        edges[i, SLOPE] = along / down if down != 0.0 else 0.0
        edges[i, HALF] = abs(margin * math.sqrt(square) / down) if down != 0.0 else np.inf


@kernel
def _draw_edges(  # noqa: PLR0917  a kernel is called by position
    edges: npt.NDArray[np.float64], num_edges: int, y: int, left: int, right: int, scale: np.float32,
    row: npt.NDArray[np.float32], crossings: npt.NDArray[np.float64],
) -> int:  # fmt: skip
    """Lower a row to its smallest d^2 / D^2, and write where edges cross it, from left to right; how many do."""
    for x in range(np.uint64(left), np.uint64(right + 1)):
        row[x] = FAR
    num_crossings = 0
    for i in range(num_edges):
        if edges[i, TOP] > y or edges[i, BOTTOM] < y:
            continue
        from_y = y - edges[i, Y1]
        middle = edges[i, X1] + edges[i, SLOPE] * from_y
        # The part of the row that lies within reach of the edge's line, and of its ends.
        start = max(float(left), edges[i, LEFT], middle - edges[i, HALF])
        stop = min(float(right), edges[i, RIGHT], middle + edges[i, HALF])
        if start <= stop:
            first, last = math.floor(start), math.ceil(stop)
            _draw_row(
                row, first, last, np.float32(first - edges[i, X1]), np.float32(from_y), np.float32(edges[i, ALONG]),
                np.float32(edges[i, DOWN]), np.float32(edges[i, INVERSE]), scale,
            )  # fmt: skip
        if (edges[i, Y1] <= y) != (edges[i, Y2] <= y):
            num_crossings = _insert(crossings, num_crossings, middle)
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
def _draw_row(  # noqa: PLR0917  a kernel is called by position
    row: npt.NDArray[np.float32], first: int, last: int, x0: np.float32, y0: np.float32,
    along: np.float32, down: np.float32, inverse: np.float32, scale: np.float32,
) -> None:  # fmt: skip
    """Lower the pixels from first to last, both included, whose first stands so far from the edge's beginning."""
    zero, one, begin = np.float32(0.0), np.float32(1.0), np.uint64(first)
    part = y0 * down
    for i in range(np.uint64(last - first + 1)):
        x = x0 + np.float32(i)
        on_edge = min(max((x * along + part) * inverse, zero), one)
        dx, dy = x - on_edge * along, y0 - on_edge * down
        row[begin + i] = min(row[begin + i], (dx * dx + dy * dy) * scale)


@kernel
def _draw_outside(  # noqa: PLR0917  a kernel is called by position
    row: npt.NDArray[np.float32], first: int, last: int, start: int, grown: np.float32,
    nearest: npt.NDArray[np.float32], thresh_mask: npt.NDArray[np.uint8],
) -> None:  # fmt: skip
    """What holds on both sides of a border: the threshold, and the band in which it is trained."""
    one, begin = np.uint8(1), np.uint64(start)
    for x in range(np.uint64(first), np.uint64(last + 1)):
        nearest[begin + x] = min(nearest[begin + x], row[x])
        thresh_mask[begin + x] = one if row[x] <= grown else thresh_mask[begin + x]


@kernel
def _draw_inside(  # noqa: PLR0917  a kernel is called by position
    row: npt.NDArray[np.float32], first: int, last: int, start: int, core: np.float32,
    shrink: npt.NDArray[np.uint8], thresh_mask: npt.NDArray[np.uint8],
) -> int:  # fmt: skip
    """What holds inside alone: the shrunk text; how many pixels of it."""
    one, begin = np.uint8(1), np.uint64(start)
    count = 0
    for x in range(np.uint64(first), np.uint64(last + 1)):
        shrink[begin + x] = one if row[x] >= core else shrink[begin + x]
        thresh_mask[begin + x] = one
        count += 1 if row[x] >= core else 0
    return count
