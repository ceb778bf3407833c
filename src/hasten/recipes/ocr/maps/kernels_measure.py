"""How far each polygon is shrunk and dilated: D = A (1 - r^2) / L, and 0 for those that are not trained."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from hasten.recipes.ocr.maps.compiled import kernel

MIN_AREA = 1.0
"""Square pixels: the official code ignores what is smaller."""


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

    Area and length are summed in the order in which GEOS, and so Shapely, sums them: D is the same to the last bit, which
    decides where a shrunk corner is rounded to.

    Args:
        points: Corners of all polygons [n, 2].
        offsets: Where each begins [k + 1].
        ignored: Those that are not trained [k].
        worth: 1 - r^2.
        min_size: Pixels of height and width below which a polygon is not trained.
        distances: Written [k]: 0 for those that are not trained.
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
    """The height or the width of a polygon's box, whichever is smaller."""
    left = right = polygon[0, 0]
    top = bottom = polygon[0, 1]
    for i in range(1, len(polygon)):
        left, right = min(left, polygon[i, 0]), max(right, polygon[i, 0])
        top, bottom = min(top, polygon[i, 1]), max(bottom, polygon[i, 1])
    return float(min(right - left, bottom - top))


@kernel
def _area(polygon: npt.NDArray[np.float64]) -> float:
    """The area, without its sign."""
    count = len(polygon)
    total = 0.0
    for i in range(1, count):
        after = i + 1 if i + 1 < count else 0
        total += (polygon[i, 0] - polygon[0, 0]) * (polygon[i - 1, 1] - polygon[after, 1])
    return abs(total / 2.0)


@kernel
def _length(polygon: npt.NDArray[np.float64]) -> float:
    """The length of the closed border."""
    count = len(polygon)
    total = 0.0
    for i in range(count):
        after = i + 1 if i + 1 < count else 0
        along = polygon[after, 0] - polygon[i, 0]
        down = polygon[after, 1] - polygon[i, 1]
        total += math.sqrt(along * along + down * down)
    return total
