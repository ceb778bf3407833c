"""Turn annotated polygons into drawable ones: once, when labels are read, never in a data loader."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hasten.recipes.needed import needed
from hasten.recipes.ocr.maps.polygons import MAX_COORDINATE

MIN_PART_AREA = 1.0
"""In square pixels; smaller parts of a self-intersecting polygon are discarded."""


def repair(polygon: npt.ArrayLike) -> list[npt.NDArray[np.float32]]:
    """Return the simple polygons that a polygon encloses, each clockwise as displayed.

    Repeated corners are dropped. A self-intersecting polygon is split into its parts ("make valid" of GEOS): a bow tie
    becomes two triangles. Holes are filled.

    Args:
        polygon: Corners [m, 2], x then y, in pixels; the first may be repeated at the end. It is not modified.

    Returns:
        The corners of each part, float32 [m, 2]; empty if there is no area or a coordinate is not finite.

    Raises:
        MachineError: The extra `recipes` is not installed.
    """
    annotated = np.asarray(polygon, dtype=np.float32).reshape(-1, 2)
    if not len(annotated) or not np.abs(annotated).max() <= MAX_COORDINATE:
        return []
    corners = _distinct(annotated)
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
    """Return the polygons in a shape; lines and points are dropped since they have no area."""
    if shape.geom_type == "Polygon":
        return [] if shape.is_empty else [shape]
    return [part for inner in getattr(shape, "geoms", ()) for part in _parts(inner)]


def _distinct(corners: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the corners without consecutive duplicates."""
    return corners[np.any(corners != np.roll(corners, -1, axis=0), axis=1)]


def _clockwise(corners: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the same polygon, clockwise as displayed, starting at the same corner."""
    return corners if _signed_area(corners) > 0 else np.concatenate([corners[:1], corners[:0:-1]])


def _signed_area(corners: npt.NDArray[np.float32]) -> float:
    """Return the area in square pixels, positive if the corners go clockwise as displayed (y grows downward)."""
    x, y = corners.astype(np.float64).T
    return float(np.dot(x - x[0], np.roll(y, -1) - np.roll(y, 1)) / 2.0)
