"""Convert a map of text probabilities to texts: a rectangle or an outline for each region above a threshold.

The smallest rectangle around a region is scored by the mean probability inside it. It is then expanded in closed form, since
the network was trained on shrunk texts. The paper's code expands it with Clipper and searches the smallest rectangle again,
which gives the same boxes. A rectangle around a curved line covers mostly background. Outlines are simplified contours,
scored and expanded in the same way, with sharp corners. A region whose expanded outline splits into parts is not a text.

Amount of expansion: the paper uses a fixed ratio, which suits words and makes long lines too thin. Without a ratio, the
shrinking is inverted exactly: for a rectangle with area A' and half perimeter S, expanded by D, the shrinking formula
`D = q A / L` with `q = 1 - r^2` gives `(8 - 4q) D^2 + 2 (1 - q) S D - q A' = 0`.
Source: Liao et al., "Real-time Scene Text Detection with Differentiable Binarization", AAAI 2020.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hasten.recipes.needed import needed
from hasten.recipes.ocr.maps import PolygonArray
from hasten.recipes.pictures import opencv

Floats = npt.NDArray[np.float32]

_CLIPPER_SCALE = 256.0
"""Clipper units per pixel; Clipper works on integers."""
_SIMPLER = 0.002
"""Tolerance of contour simplification as a fraction of the contour's length; at least half a pixel."""


@dataclass(frozen=True, kw_only=True)
class BoxSettings:
    """Settings of the post-processing.

    Attributes:
        thresh: Pixels above this probability belong to a text.
        box_thresh: Smallest mean probability in a box.
        min_side: Smallest shorter side of a shrunk text, in pixels from centre to centre.
        max_boxes: Largest number of regions to process, largest first.
        shrink_ratio: Shrink ratio of texts in training.
        unclip_ratio: Expand by this factor times area over perimeter; None inverts the shrinking.
        outlines: Return the outline of each text, for curved lines, instead of a rectangle.
    """

    thresh: float = 0.3
    box_thresh: float = 0.5
    min_side: float = 2.0
    max_boxes: int = 1000
    shrink_ratio: float = 0.4
    unclip_ratio: float | None = None
    outlines: bool = False


@dataclass(frozen=True)
class Boxes:
    """Detected texts, highest score first.

    Attributes:
        corners: x and y in pixels, `[n, 4, 2]`, in order around each box.
        scores: Mean probability in each box, `[n]`.
    """

    corners: Floats
    scores: Floats

    @property
    def shapes(self) -> list[Floats]:
        """The corners of each text, `[4, 2]`."""
        return list(self.corners)


@dataclass(frozen=True, eq=False)
class Outlines:
    """Detected texts, highest score first.

    Attributes:
        polygons: Corners of each text in pixels; none is ignored.
        scores: Mean probability in each text before expansion, `[n]`.
    """

    polygons: PolygonArray
    scores: Floats

    @property
    def shapes(self) -> list[npt.NDArray[np.float32]]:
        """The corners of each text, `[m, 2]`."""
        return [self.polygons.polygon(number) for number in range(len(self.polygons))]


Texts: TypeAlias = Boxes | Outlines


def find_boxes(probability: Floats, settings: BoxSettings) -> Boxes:
    """Find boxes, highest score first.

    Args:
        probability: `float32 [height, width]`.
        settings: Settings of the post-processing.

    Raises:
        MachineError: A package of the extra `recipes` is missing.
    """
    cv2 = opencv()
    corners, scores = [], []
    for contour in outer_contours(probability, settings):
        if len(contour) < 3:  # a straight row of pixels has no area
            continue
        rectangle = cv2.minAreaRect(contour)
        centre, (width, height), angle = rectangle
        if min(width, height) < settings.min_side:
            continue
        score = box_score(probability, cv2.boxPoints(rectangle))
        if score < settings.box_thresh:
            continue
        more = 2 * unclip_distance(width * height, 2 * (width + height), settings)
        if min(width, height) + more < settings.min_side + 2:
            continue
        corners.append(cv2.boxPoints((centre, (width + more, height + more), angle)))
        scores.append(score)
    return sorted_boxes(corners, scores)


def find_outlines(probability: Floats, settings: BoxSettings) -> Outlines:
    """Find outlines, one contour after another.

    Args:
        probability: `float32 [height, width]`.
        settings: Settings of the post-processing.

    Raises:
        MachineError: A package of the extra `recipes` is missing.
    """
    cv2 = opencv()
    texts: list[tuple[float, Floats]] = []
    for contour in outer_contours(probability, settings):
        if len(contour) < 3 or min(cv2.minAreaRect(contour)[1]) < settings.min_side:
            continue
        tolerance = max(0.5, _SIMPLER * cv2.arcLength(contour, closed=True))
        simpler = cv2.approxPolyDP(contour, tolerance, closed=True).reshape(-1, 2)
        if len(simpler) < 3:
            continue
        corners = simpler.astype(np.float32)
        score = box_score(probability, corners)
        if score < settings.box_thresh:
            continue
        parts = grown(corners, settings, sharp=True)
        if len(parts) == 1 and min(cv2.minAreaRect(parts[0])[1]) >= settings.min_side + 2:
            texts.append((score, parts[0]))
    texts.sort(key=lambda one: (-one[0], float(one[1][0, 1]), float(one[1][0, 0])))
    scores = np.asarray([score for score, _ in texts], dtype=np.float32)
    return Outlines(PolygonArray.from_list([corners for _, corners in texts]), scores)


def find_texts(probability: Floats, settings: BoxSettings) -> Texts:
    """Find the texts of one image, as boxes or as outlines.

    Args:
        probability: Probability of text, `float32 [height, width]`.
        settings: Settings of the post-processing, including which of the two.

    Raises:
        MachineError: A package of the extra `recipes` is missing.
    """
    return find_outlines(probability, settings) if settings.outlines else find_boxes(probability, settings)


def unclip_distance(area: float, length: float, settings: BoxSettings) -> float:
    """Return how far to expand a box on each side, in pixels.

    Args:
        area: Area of the box or outline, in square pixels.
        length: Its perimeter in pixels.
        settings: The ratio, or the shrinking to invert.
    """
    if length <= 0:
        return 0.0
    if settings.unclip_ratio is not None:
        return area * settings.unclip_ratio / length
    q, half = 1 - settings.shrink_ratio**2, length / 2
    linear, square = (1 - q) * half, 8 - 4 * q
    return (math.sqrt(linear**2 + square * q * area) - linear) / square


def box_score(probability: Floats, corners: Floats) -> float:
    """Return the mean probability over the pixels of a box or an outline, as filled by OpenCV; 0 outside of the map.

    Args:
        probability: `float32 [height, width]`.
        corners: `[m, 2]`.
    """
    cv2 = opencv()
    drawn = np.rint(corners).astype(np.int32)
    left, top, width, height = cv2.boundingRect(drawn)
    first_x, first_y = max(left, 0), max(top, 0)
    part = probability[first_y : max(top + height, 0), first_x : max(left + width, 0)]
    if not part.size:
        return 0.0
    inside = np.zeros(part.shape, dtype=np.uint8)
    cv2.fillPoly(inside, [drawn], 1, offset=(-first_x, -first_y))
    mean: float = cv2.mean(part, inside)[0]
    return mean


def outer_contours(probability: Floats, settings: BoxSettings) -> list[Any]:
    """Return the contours of the regions, including those inside holes of others; only the largest if there are too many.

    Args:
        probability: `float32 [height, width]`.
        settings: Threshold and largest number of regions.
    """
    cv2 = opencv()
    mask = (probability > settings.thresh).view(np.uint8)
    contours, tree = cv2.findContours(mask, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_SIMPLE)
    if not len(contours):
        return []
    outer = [contours[number] for number in np.flatnonzero(tree.reshape(-1, 4)[:, 3] < 0)]
    if len(outer) > settings.max_boxes:
        outer = sorted(outer, key=_bounds_first)[: settings.max_boxes]
    return outer


def _bounds_first(contour: Any) -> tuple[int, int, int]:
    """Sort key: the largest bounding rectangles first, then from top to bottom, then from left to right."""
    left, top, width, height = opencv().boundingRect(contour)
    return -width * height, top, left


def grown(outline: Floats, settings: BoxSettings, *, sharp: bool = False) -> list[Floats]:
    """Expand the outline of a text: one polygon, or more if the result crosses itself.

    Args:
        outline: `[m, 2]`.
        settings: How far to expand.
        sharp: Keep corners sharp instead of rounding them.

    Raises:
        MachineError: pyclipper or shapely is not installed.
    """
    pyclipper = needed("pyclipper")
    polygon = needed("shapely").Polygon(outline)
    distance = unclip_distance(polygon.area, polygon.length, settings)
    offset = pyclipper.PyclipperOffset(2.0, 0.25 * _CLIPPER_SCALE)
    path = [(round(x * _CLIPPER_SCALE), round(y * _CLIPPER_SCALE)) for x, y in outline.tolist()]
    offset.AddPath(path, pyclipper.JT_MITER if sharp else pyclipper.JT_ROUND, pyclipper.ET_CLOSEDPOLYGON)
    parts = offset.Execute(distance * _CLIPPER_SCALE)
    return [(np.asarray(part, dtype=np.float64) / _CLIPPER_SCALE).astype(np.float32) for part in parts]


def sorted_boxes(corners: list[Floats], scores: list[float]) -> Boxes:
    """Sort boxes: highest score first, then from top to bottom, then from left to right."""
    if not corners:
        return Boxes(np.zeros((0, 4, 2), dtype=np.float32), np.zeros(0, dtype=np.float32))
    boxes, sure = np.asarray(corners, dtype=np.float32), np.asarray(scores, dtype=np.float32)
    order = np.lexsort((boxes[:, 0, 0], boxes[:, 0, 1], -sure))
    return Boxes(boxes[order], sure[order])
