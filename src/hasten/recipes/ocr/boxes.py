"""From a map of text probabilities to boxes: one rectangle, turned as the text is, for each patch of text.

A patch is what hangs together above a threshold. Its smallest rectangle is scored by the mean probability inside it, and
grown, since the network was taught shrunk texts. `naive_boxes` grows it by a clipper and looks for the smallest rectangle
again, as the paper's code does; `fast_boxes` grows it in closed form and leaves specks out early. Both give the same boxes.

How far to grow: the paper takes a fixed ratio, which is right for words and makes long lines too thin. Without a ratio, the
shrinking is undone exactly: of a rectangle with the area A' and half the perimeter S, grown by D, the shrinking law
`D = q A / L` with `q = 1 - r^2` gives `(8 - 4q) D^2 + 2 (1 - q) S D - q A' = 0`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hasten.recipes.needed import needed
from hasten.recipes.pictures import opencv

Floats = npt.NDArray[np.float32]

_CLIPPER_SCALE = 256.0
"""Clipper works on whole numbers: so many to a pixel."""


@dataclass(frozen=True, kw_only=True)
class BoxSettings:
    """What counts as a text.

    Attributes:
        thresh: A pixel above this probability belongs to a text.
        box_thresh: The least mean probability in a box.
        min_side: The shorter side that a shrunk text must have, in pixels from centre to centre.
        max_boxes: Patches that are looked at, the largest first.
        shrink_ratio: What texts were shrunk by in training.
        unclip_ratio: Grow by this times area over perimeter; None undoes the shrinking.
        outlines: Find the outline of each text, for bent lines, not a rectangle around it.
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
    """Found texts, the surest first.

    Attributes:
        corners: x and y in pixels, `[n, 4, 2]`, in their order around each box.
        scores: Mean probability in each box, `[n]`.
    """

    corners: Floats
    scores: Floats

    @property
    def shapes(self) -> list[Floats]:
        """Corners of each text, `[4, 2]`."""
        return list(self.corners)


def naive_boxes(probability: Floats, settings: BoxSettings) -> Boxes:
    """Boxes, one contour after another.

    Args:
        probability: `float32 [height, width]`.
        settings: What counts as a text.

    Raises:
        MachineError: A package of the extra `recipes` is missing.
    """
    cv2 = opencv()
    mask = (probability > settings.thresh).astype(np.uint8)
    corners, scores = [], []
    for contour in outer_contours(mask, settings):
        rectangle = cv2.minAreaRect(contour)
        if min(rectangle[1]) < settings.min_side:
            continue
        box = cv2.boxPoints(rectangle)
        score = box_score(probability, box)
        if score < settings.box_thresh:
            continue
        parts = grown(box, settings)
        larger = cv2.minAreaRect(parts[0] if parts else box)
        if min(larger[1]) < settings.min_side + 2:
            continue
        corners.append(cv2.boxPoints(larger))
        scores.append(score)
    return _sorted(corners, scores)


def fast_boxes(probability: Floats, settings: BoxSettings) -> Boxes:
    """The same boxes, grown in closed form.

    Args:
        probability: `float32 [height, width]`.
        settings: What counts as a text.

    Raises:
        MachineError: A package of the extra `recipes` is missing.
    """
    cv2 = opencv()
    mask = (probability > settings.thresh).view(np.uint8)
    corners, scores = [], []
    for contour in outer_contours(mask, settings):
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
    return _sorted(corners, scores)


def unclip_distance(area: float, length: float, settings: BoxSettings) -> float:
    """How far a box is grown on each side, in pixels.

    Args:
        area: Of the box or outline, in square pixels.
        length: Its perimeter in pixels.
        settings: The ratio, or the shrinking to undo.
    """
    if length <= 0:
        return 0.0
    if settings.unclip_ratio is not None:
        return area * settings.unclip_ratio / length
    q, half = 1 - settings.shrink_ratio**2, length / 2
    linear, square = (1 - q) * half, 8 - 4 * q
    return (math.sqrt(linear**2 + square * q * area) - linear) / square


def box_score(probability: Floats, corners: Floats) -> float:
    """Mean probability over the pixels of a box or an outline, drawn as OpenCV fills polygons; 0 outside of the map.

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


def outer_contours(mask: npt.NDArray[np.uint8], settings: BoxSettings) -> list[Any]:
    """The contours of the patches, those inside the holes of others too; the largest where there are too many.

    Args:
        mask: Where the probability is above the threshold, `uint8 [height, width]`.
        settings: How many patches are looked at.
    """
    cv2 = opencv()
    contours, tree = cv2.findContours(mask, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_SIMPLE)
    if not len(contours):
        return []
    outer = [contours[number] for number in np.flatnonzero(tree.reshape(-1, 4)[:, 3] < 0)]
    if len(outer) > settings.max_boxes:
        outer = sorted(outer, key=_bounds_first)[: settings.max_boxes]
    return outer


def _bounds_first(contour: Any) -> tuple[int, int, int]:
    """Sort key: the largest upright bounds first, then from the top, then from the left."""
    left, top, width, height = opencv().boundingRect(contour)
    return -width * height, top, left


def grown(outline: Floats, settings: BoxSettings, *, sharp: bool = False) -> list[Floats]:
    """The outline of a text whose edges are moved out: one polygon, or more where it crosses itself.

    Args:
        outline: `[m, 2]`.
        settings: How far.
        sharp: Corners stay corners, else they become round.

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


def _sorted(corners: list[Floats], scores: list[float]) -> Boxes:
    if not corners:
        return Boxes(np.zeros((0, 4, 2), dtype=np.float32), np.zeros(0, dtype=np.float32))
    boxes, sure = np.asarray(corners, dtype=np.float32), np.asarray(scores, dtype=np.float32)
    order = np.lexsort((boxes[:, 0, 0], boxes[:, 0, 1], -sure))
    return Boxes(boxes[order], sure[order])
