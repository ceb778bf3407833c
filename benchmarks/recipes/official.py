"""The official target maps of DBNet, written from the papers and the public code's behaviour, with the libraries it uses.

Source: Liao et al., "Real-time Scene Text Detection with Differentiable Binarization", AAAI 2020, and the two steps of its
code that are copied everywhere: shrunk text with its mask, then the border with its mask. It works as that code works (a
polygon at a time, each edge over the whole box of its polygon, in double precision), since it is what the kernels are
measured against. It shares nothing with them. What it does where that code fails is said at each place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
import pyclipper
from shapely.geometry import Polygon

Array = npt.NDArray[Any]


class OfficialMaps(NamedTuple):
    """Shrunk text, its mask, thresholds, their mask: all float32 [height, width], as the code has them."""

    shrink: Array
    shrink_mask: Array
    thresh: Array
    thresh_mask: Array


def official_maps(
    polygons: Sequence[Array],
    ignored: Sequence[bool],
    size: tuple[int, int],
    *,
    shrink_ratio: float = 0.4,
    thresh_min: float = 0.3,
    thresh_max: float = 0.7,
    min_text_size: float = 8.0,
) -> OfficialMaps:
    """The four maps of a picture.

    Args:
        polygons: Corners of each [m, 2].
        ignored: Which are "###".
        size: Height and width of the picture.
        shrink_ratio: r of D = A (1 - r^2) / L.
        thresh_min: Threshold far from borders.
        thresh_max: Threshold on borders.
        min_text_size: Smaller text is ignored, in pixels.
    """
    shapes = [np.array(polygon, dtype=np.float64) for polygon in polygons]
    ignore = list(ignored)
    shrink, shrink_mask = np.zeros(size, np.float32), np.ones(size, np.float32)
    for number, shape in enumerate(shapes):
        height, width = np.ptp(shape[:, 1]), np.ptp(shape[:, 0])
        parts = []
        if not ignore[number] and min(height, width) >= min_text_size and Polygon(shape).area >= 1:
            parts = _offset(shape, -_distance(shape, shrink_ratio))
        if not parts:
            cv2.fillPoly(shrink_mask, [shape.astype(np.int32)], 0)
            ignore[number] = True
        for part in parts:  # the first code drew one part, later ones draw all
            cv2.fillPoly(shrink, [part.astype(np.int32)], 1)
    thresh, thresh_mask = np.zeros(size, np.float32), np.zeros(size, np.float32)
    for number, shape in enumerate(shapes):
        if not ignore[number]:
            _draw_border(shape, _distance(shape, shrink_ratio), thresh, thresh_mask)
    return OfficialMaps(shrink, shrink_mask, thresh * (thresh_max - thresh_min) + thresh_min, thresh_mask)


def _distance(shape: Array, ratio: float) -> float:
    polygon = Polygon(shape)
    return float(polygon.area * (1 - np.power(ratio, 2)) / polygon.length)


def _offset(shape: Array, distance: float) -> list[Array]:
    """The polygon moved outwards by a distance, by Clipper, which cuts the corners to integers."""
    clipper = pyclipper.PyclipperOffset()
    clipper.AddPath([tuple(corner) for corner in shape], pyclipper.JT_ROUND, pyclipper.ET_CLOSEDPOLYGON)
    return [np.array(part).reshape(-1, 2) for part in clipper.Execute(distance)]


def _draw_border(shape: Array, distance: float, thresh: Array, thresh_mask: Array) -> None:
    """Draw the border of one polygon into the thresholds and their mask."""
    padded = _offset(shape, distance)[0]
    cv2.fillPoly(thresh_mask, [padded.astype(np.int32)], 1.0)
    (left, top), (right, bottom) = padded.min(axis=0), padded.max(axis=0)
    width, height = right - left + 1, bottom - top + 1
    moved = shape - (left, top)
    xs = np.broadcast_to(np.linspace(0, width - 1, num=width).reshape(1, width), (height, width))
    ys = np.broadcast_to(np.linspace(0, height - 1, num=height).reshape(height, 1), (height, width))
    maps = np.zeros((len(moved), height, width), dtype=np.float32)
    for i in range(len(moved)):
        away = _edge_distance(xs, ys, moved[i], moved[(i + 1) % len(moved)])
        maps[i] = np.clip(away / distance, 0, 1)
    # The edge's formula gives NaN in a few pixels, all of them on the edge: by 0 / 0 in a corner, or by the root of a
    # negative rounding error. The code loses those pixels; they are at distance 0.
    nearest = np.nan_to_num(maps.min(axis=0))
    # What lies outside the picture is cut off; the code mixes up the two boxes where a polygon lies wholly outside.
    x0, y0 = max(left, 0), max(top, 0)
    x1, y1 = min(right, thresh.shape[1] - 1), min(bottom, thresh.shape[0] - 1)
    if x0 > x1 or y0 > y1:
        return
    inside = thresh[y0 : y1 + 1, x0 : x1 + 1]
    inside[:] = np.fmax(1 - nearest[y0 - top : y1 - top + 1, x0 - left : x1 - left + 1], inside)


def _edge_distance(xs: Array, ys: Array, one: Array, other: Array) -> Array:
    """Of all pixels to one edge: the height over it where it is seen under 90 degrees or more, else to the nearer end."""
    to_one = np.square(xs - one[0]) + np.square(ys - one[1])
    to_other = np.square(xs - other[0]) + np.square(ys - other[1])
    edge = np.square(one[0] - other[0]) + np.square(one[1] - other[1])
    with np.errstate(divide="ignore", invalid="ignore"):
        cosine = (edge - to_one - to_other) / (2 * np.sqrt(to_one * to_other))
        square_sine = np.nan_to_num(1 - np.square(cosine))
        away: Array = np.sqrt(to_one * to_other * square_sine / edge)
    away[cosine < 0] = np.sqrt(np.fmin(to_one, to_other))[cosine < 0]
    return away
