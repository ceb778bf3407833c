"""Drawable polygons of what people annotated: once, when labels are read, never in a loader."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hasten.recipes.needed import needed
from hasten.recipes.ocr.maps.polygons import MAX_COORDINATE

MIN_PART_AREA = 1.0
"""Square pixels: a smaller part of a polygon that crosses itself is a splinter."""


def mend(polygon: npt.ArrayLike) -> list[npt.NDArray[np.float32]]:
    """The simple polygons that a polygon encloses, each clockwise as the picture is seen.

    Repeated corners are dropped. A polygon that crosses itself becomes its parts ("make valid" of GEOS): a bow tie becomes
    two triangles. Holes are filled.

    Args:
        polygon: Its corners [m, 2], x then y, in pixels; the first may be repeated at the end. It is not changed.

    Returns:
        Of each part its corners, float32 [m, 2]; none where there is no area, or a coordinate is not finite.

    Raises:
        MachineError: The extra `recipes` is not installed.
    """
    given = np.asarray(polygon, dtype=np.float32).reshape(-1, 2)
    if not len(given) or not np.abs(given).max() <= MAX_COORDINATE:
        return []
    corners = _distinct(given)
    if len(corners) < 3:
        return []
    shapely = needed("shapely")
    shape = shapely.Polygon(corners)
    if shape.is_valid:
        return [_clockwise(corners)] if shape.area > 0 else []
    parts = [np.array(part.exterior.coords, np.float32)[:-1] for part in _parts(shapely.make_valid(shape))]
    return [
        _clockwise(part) for part in map(_distinct, parts) if len(part) >= 3 and abs(_signed_area(part)) >= MIN_PART_AREA
    ]


def _parts(shape: Any) -> list[Any]:
    """The polygons of a shape, whatever else is in it: lines and points have no area."""
    if shape.geom_type == "Polygon":
        return [] if shape.is_empty else [shape]
    return [part for inner in getattr(shape, "geoms", ()) for part in _parts(inner)]


def _distinct(corners: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The corners without those that the next one repeats."""
    return corners[np.any(corners != np.roll(corners, -1, axis=0), axis=1)]


def _clockwise(corners: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The same polygon, clockwise as the picture is seen, from the same corner on."""
    return corners if _signed_area(corners) > 0 else np.concatenate([corners[:1], corners[:0:-1]])


def _signed_area(corners: npt.NDArray[np.float32]) -> float:
    """Square pixels, positive where the corners go clockwise as the picture is seen (y grows downwards)."""
    x, y = corners.astype(np.float64).T
    return float(np.dot(x - x[0], np.roll(y, -1) - np.roll(y, 1)) / 2.0)
