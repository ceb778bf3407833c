"""Target maps that are those of the official code: the same masks, and thresholds within 1e-6.

What is drawn is decided by the libraries that the official code uses: polygons are shrunk and dilated by Clipper, on corners
cut to integers, and filled by OpenCV. The dilation of convex polygons and the threshold map are kernels of our own. In three
cases the official code gives no answer, or an accident; here:

- a pixel that lies on an edge, or on a corner, is at distance 0; there the official formula may take the root of a negative
  rounding error, and its map then has a hole,
- what lies outside the picture is cut off; there the official code fails, or writes into another place,
- of text that falls apart when shrunk all parts are drawn; the first code drew one of them, later ones draw all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hasten.core.errors import DataError, JobError
from hasten.recipes.needed import needed
from hasten.recipes.ocr.maps.polygons import PolygonArray


@dataclass(frozen=True, kw_only=True)
class MapSettings:
    """How target maps are made; the defaults are those of the paper (Liao et al., AAAI 2020) and its code.

    Attributes:
        shrink_ratio: How far text is shrunk, r of D = A (1 - r^2) / L: between 0 and 1, without both.
        thresh_min: The threshold map far from any border.
        thresh_max: The threshold map on a border.
        min_text_size: Text that is less high or less wide than that is not trained, in pixels; 0 trains all.

    Raises:
        JobError: A setting is out of its range.
    """

    shrink_ratio: float = 0.4
    thresh_min: float = 0.3
    thresh_max: float = 0.7
    min_text_size: float = 8.0

    def __post_init__(self) -> None:
        if not 0 < self.shrink_ratio < 1:
            raise JobError(f"shrink_ratio must lie between 0 and 1, not at {self.shrink_ratio}.")
        if not 0 <= self.thresh_min < self.thresh_max <= 1:
            raise JobError(f"thresholds must rise within 0 to 1, not from {self.thresh_min} to {self.thresh_max}.")
        if not self.min_text_size >= 0:
            raise JobError(f"min_text_size must be 0 or more pixels, not {self.min_text_size}.")


@dataclass(frozen=True, eq=False)
class Maps:
    """The four target maps of a picture.

    Attributes:
        shrink: 1 in the shrunk text, 0 elsewhere: uint8 [height, width].
        shrink_mask: 0 where `shrink` is not trained (ignored and vanished text), 1 elsewhere: uint8 [height, width].
        thresh: From thresh_min to thresh_max, the latter on the borders of text: float32 [height, width].
        thresh_mask: 1 where `thresh` is trained, in text and around it, 0 elsewhere: uint8 [height, width].
    """

    shrink: npt.NDArray[np.uint8]
    shrink_mask: npt.NDArray[np.uint8]
    thresh: npt.NDArray[np.float32]
    thresh_mask: npt.NDArray[np.uint8]


DEFAULT = MapSettings()


def make_maps(polygons: PolygonArray, size: tuple[int, int], settings: MapSettings = DEFAULT) -> Maps:
    """The four target maps of a picture.

    Polygons may reach out of the picture: what lies outside is cut off. A polygon that is ignored, smaller than
    `min_text_size`, below one square pixel, or that vanishes when it is shrunk, is masked out of `shrink_mask` and leaves no
    trace in the other maps. Of a polygon that falls apart when it is shrunk all parts are drawn.

    Safe in several threads and processes; the heavy parts hold no lock. Nothing that is passed is changed.

    Args:
        polygons: Of the picture, in its pixels.
        size: Its height and width in pixels.
        settings: Which maps.

    Raises:
        DataError: The size is not positive.
        MachineError: The extra `recipes` is not installed.
    """
    if min(size) <= 0:
        raise DataError(f"a picture is at least one pixel high and wide, not {size[0]} x {size[1]}.")
    cv2, pyclipper = needed("cv2"), needed("pyclipper")
    kernels, dilating = needed(f"{__package__}.kernels"), needed(f"{__package__}.kernels_dilate")
    points, offsets, distances = measured(polygons, settings)
    corners = points.astype(np.int32)
    ring_offsets = np.empty(len(offsets), np.int64)
    boxes = np.zeros((len(polygons), 4), np.int64)
    rings = dilating.dilate(corners, offsets, distances, ring_offsets, boxes)
    nearest, shrink, thresh_mask, shrink_mask = blank(size)
    clipper = pyclipper.PyclipperOffset()
    starts, ring_starts, listed = offsets.tolist(), ring_offsets.tolist(), corners.tolist()
    for number, distance in enumerate(distances.tolist()):
        start, stop = starts[number : number + 2]
        parts: list[Any] = []
        if distance > 0:
            clipper.Clear()
            clipper.AddPath(listed[start:stop], pyclipper.JT_ROUND, pyclipper.ET_CLOSEDPOLYGON)
            parts = clipper.Execute(-distance)
        if not parts:
            distances[number] = 0.0
            cv2.fillPoly(shrink_mask, [corners[start:stop]], 0)
            continue
        for part in parts:
            cv2.fillPoly(shrink, [np.array(part, np.int32)], 1)
        ring = rings[ring_starts[number] : ring_starts[number + 1]]
        if not len(ring):
            ring = np.array(clipper.Execute(distance)[0], np.int32)  # the outline comes first, before any hole
            boxes[number, :2], boxes[number, 2:] = ring.min(axis=0), ring.max(axis=0)
        cv2.fillPoly(thresh_mask, [ring], 1)
    kernels.draw_borders(points, offsets, distances, boxes, size[1], nearest)
    kernels.to_thresholds(nearest, *span_of(settings))
    return Maps(shrink, shrink_mask, nearest.reshape(size), thresh_mask)


def warm() -> None:
    """Compile the kernels, or load them from disk. Call it in the process that starts workers: each would compile anew.

    Compiled kernels are cached on disk (`__pycache__`, or `NUMBA_CACHE_DIR`): only the first run on a machine takes seconds.

    Raises:
        MachineError: The extra `recipes` is not installed.
    """
    make_maps(PolygonArray.from_list([[[2, 2], [14, 2], [14, 13], [2, 13]]]), (16, 16))


def blank(
    size: tuple[int, int],
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8], npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """What is drawn on, in one piece of memory.

    Several pieces would go back to the system each time, and fetching them anew can take longer than the drawing.

    Returns:
        d^2 / D^2 at its 1 [height * width]; shrunk text at 0, the mask of thresholds at 0, the mask of shrunk text at 1
        [height, width].
    """
    num_pixels = size[0] * size[1]
    room = np.empty(7 * num_pixels, np.uint8)
    nearest, masks = room[: 4 * num_pixels].view(np.float32), room[4 * num_pixels :].reshape(3, *size)
    nearest.fill(1.0)
    masks[:2], masks[2] = 0, 1
    return nearest, masks[0], masks[1], masks[2]


def measured(
    polygons: PolygonArray, settings: MapSettings
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """The corners [n, 2], where polygons begin [k + 1], and the distance D of each in pixels, 0 where it is not trained [k].

    All are arrays of their own, in the one layout that kernels are compiled for, whatever the polygons came in.
    """
    points, offsets = polygons.points.astype(np.float64, order="C"), polygons.offsets.astype(np.int64)
    ignored, distances = polygons.ignored.astype(np.bool_), np.empty(len(polygons), np.float64)
    worth = 1.0 - float(np.power(settings.shrink_ratio, 2))
    needed(f"{__package__}.kernels").measure(points, offsets, ignored, worth, float(settings.min_text_size), distances)
    return points, offsets, distances


def span_of(settings: MapSettings) -> tuple[np.float32, np.float32]:
    """The lowest threshold, and how far the highest lies above it, as the official code rounds them."""
    return np.float32(settings.thresh_min), np.float32(settings.thresh_max - settings.thresh_min)
