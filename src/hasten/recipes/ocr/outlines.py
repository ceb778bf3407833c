"""From a map of text probabilities to outlines: one polygon for each patch of text, bent as the text is.

A rectangle around a bent line is mostly beside it. Here the contour of a patch is simplified, scored by the mean
probability inside it, and grown by what undoes the shrinking (see `boxes`); its corners stay sharp. A patch whose grown
outline falls into parts is no text.
Source: Liao et al., "Real-time Scene Text Detection with Differentiable Binarization", AAAI 2020, finds curved texts so.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hasten.recipes.ocr.boxes import BoxSettings, Floats, box_score, grown, outer_contours
from hasten.recipes.ocr.maps import PolygonArray
from hasten.recipes.pictures import opencv

_SIMPLER = 0.002
"""A contour is simplified by this share of its length, in pixels, and by half a pixel at least."""


@dataclass(frozen=True, eq=False)
class Outlines:
    """Found texts, the surest first.

    Attributes:
        polygons: Of each its corners in pixels; none is ignored.
        scores: Mean probability in each before it is grown, `[n]`.
    """

    polygons: PolygonArray
    scores: Floats

    @property
    def shapes(self) -> list[npt.NDArray[np.float32]]:
        """Corners of each text, `[m, 2]`."""
        return [self.polygons.polygon(number) for number in range(len(self.polygons))]


def find_outlines(probability: Floats, settings: BoxSettings) -> Outlines:
    """Outlines, one contour after another.

    Args:
        probability: `float32 [height, width]`.
        settings: What counts as a text.

    Raises:
        MachineError: A package of the extra `recipes` is missing.
    """
    cv2 = opencv()
    mask = (probability > settings.thresh).view(np.uint8)
    found: list[tuple[float, Floats]] = []
    for contour in outer_contours(mask, settings):
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
            found.append((score, parts[0]))
    found.sort(key=lambda one: (-one[0], float(one[1][0, 1]), float(one[1][0, 0])))
    scores = np.asarray([score for score, _ in found], dtype=np.float32)
    return Outlines(PolygonArray.from_list([corners for _, corners in found]), scores)
