"""Target maps as the paper's code makes them: a polygon at a time, in Python and NumPy. Slow, and easy to check.

It is what `NaiveOcrJob` trains on, and what the exact kernel of `maps` must equal. Source: Liao et al. 2020, "Real-time
Scene Text Detection with Differentiable Binarization", sections 3.3 and 3.4, and the maps of the code published with it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hasten.recipes.needed import needed
from hasten.recipes.ocr.maps import Maps, MapSettings, PolygonArray
from hasten.recipes.pictures import opencv

Floats = npt.NDArray[np.float64]


def plain_maps(polygons: PolygonArray, size: tuple[int, int], settings: MapSettings) -> Maps:
    """Make the four target maps of one picture.

    Args:
        polygons: Where text stands, in pixels of the maps.
        size: Height and width of the maps.
        settings: Shrinking, thresholds and the smallest text; its kernel does not matter here.

    Raises:
        MachineError: A package of the extra `recipes` is missing.
    """
    cv2 = opencv()
    shrink, shrink_mask = np.zeros(size, dtype=np.uint8), np.ones(size, dtype=np.uint8)
    border, border_mask = np.zeros(size, dtype=np.float32), np.zeros(size, dtype=np.uint8)
    for number in range(len(polygons)):
        corners = np.asarray(polygons.polygon(number), dtype=np.float32)
        width, height = corners.max(axis=0) - corners.min(axis=0)
        if polygons.ignored[number] or min(width, height) < settings.min_text_size:
            cv2.fillPoly(shrink_mask, [corners.astype(np.int32)], 0)
            continue
        distance = shrink_distance(corners, settings.shrink_ratio)
        inner = _moved(corners, -distance) if distance > 0 else []
        if not inner:
            cv2.fillPoly(shrink_mask, [corners.astype(np.int32)], 0)
            continue
        for part in inner:
            cv2.fillPoly(shrink, [part], 1)
        _add_border(corners, distance, border, border_mask)
    low, high = settings.thresh_min, settings.thresh_max
    thresh = (border * (high - low) + low).astype(np.float32)
    return Maps(shrink=shrink, shrink_mask=shrink_mask, thresh=thresh, thresh_mask=border_mask)


def shrink_distance(corners: npt.NDArray[Any], shrink_ratio: float) -> float:
    """How far a polygon's edges are moved in, in pixels: `D = A (1 - r^2) / L` (equation 10); 0 below one square pixel."""
    polygon = needed("shapely").Polygon(corners)
    if polygon.area < 1:
        return 0.0
    return float(polygon.area * (1 - shrink_ratio**2) / polygon.length)


def _moved(corners: npt.NDArray[Any], distance: float) -> list[npt.NDArray[np.int32]]:
    """The polygon with its edges moved out (or in, below 0), as Clipper gives it: whole pixels, in one part or several."""
    pyclipper = needed("pyclipper")
    offset = pyclipper.PyclipperOffset()
    offset.AddPath([tuple(corner) for corner in corners.tolist()], pyclipper.JT_ROUND, pyclipper.ET_CLOSEDPOLYGON)
    return [np.asarray(part, dtype=np.int32).reshape(-1, 2) for part in offset.Execute(distance)]


def _add_border(
    corners: npt.NDArray[Any], distance: float, border: npt.NDArray[np.float32], border_mask: npt.NDArray[np.uint8]
) -> None:
    """Draw one polygon's border: 1 on its edges, falling to 0 at `distance` pixels from them."""
    padded = _moved(corners, distance)
    if not padded:
        return
    outline = padded[0]
    opencv().fillPoly(border_mask, [outline], 1)
    (left, top), (right, bottom) = outline.min(axis=0), outline.max(axis=0)
    height, width = border.shape
    if right < 0 or bottom < 0 or left >= width or top >= height:
        return
    first_x, last_x = min(max(0, left), width - 1), min(max(0, right), width - 1)
    first_y, last_y = min(max(0, top), height - 1), min(max(0, bottom), height - 1)
    xs = np.broadcast_to(np.arange(right - left + 1, dtype=np.float64), (bottom - top + 1, right - left + 1))
    ys = np.broadcast_to(np.arange(bottom - top + 1, dtype=np.float64)[:, None], (bottom - top + 1, right - left + 1))
    moved = corners.astype(np.float64) - (left, top)
    nearest = np.ones(xs.shape, dtype=np.float64)
    for number in range(len(moved)):
        away = edge_distance(xs, ys, moved[number], moved[(number + 1) % len(moved)])
        nearest = np.minimum(nearest, np.clip(away / distance, 0, 1))
    seen = 1 - nearest[first_y - top : last_y - top + 1, first_x - left : last_x - left + 1]
    part = border[first_y : last_y + 1, first_x : last_x + 1]
    np.fmax(seen.astype(np.float32), part, out=part)


def edge_distance(xs: Floats, ys: Floats, start: Floats, end: Floats) -> Floats:
    """How far pixels lie from an edge, by the law of the paper's code.

    Inside the circle over the edge it is the distance to the edge's line, outside of it that to the nearer end. That is not
    the distance to the segment, and it is what published models were trained with.

    Args:
        xs: The pixels' x, `[height, width]`.
        ys: Their y.
        start: Where the edge begins, x and y.
        end: Where it ends.
    """
    to_start = (xs - start[0]) ** 2 + (ys - start[1]) ** 2
    to_end = (xs - end[0]) ** 2 + (ys - end[1]) ** 2
    edge = (start[0] - end[0]) ** 2 + (start[1] - end[1]) ** 2
    with np.errstate(divide="ignore", invalid="ignore"):
        cosine = (edge - to_start - to_end) / (2 * np.sqrt(to_start * to_end))
        squared_sine = np.nan_to_num(1 - cosine**2)
        away: Floats = np.sqrt(np.maximum(to_start * to_end * squared_sine / edge, 0))
    outside = cosine < 0
    away[outside] = np.sqrt(np.fmin(to_start, to_end))[outside]
    return np.nan_to_num(away)
