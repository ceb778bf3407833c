"""Make the target maps of the official code: identical masks, and thresholds within 1e-6.

The shapes are determined by the libraries of the official code: polygons are shrunk and dilated by Clipper, on corners
truncated to integers, and filled by OpenCV. The dilation of convex polygons and the threshold map are Hasten's own kernels.
In three cases the official code fails or gives an arbitrary result. Here:

- a pixel on an edge or a corner has distance 0; the official formula may take the root of a negative rounding error, which
  leaves a hole in its map,
- parts outside the image are clipped; the official code fails, or writes to a wrong position,
- if a text splits into parts when shrunk, all parts are drawn; the first official code drew only one, later versions draw
all.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from hasten.core.doing import doing
from hasten.core.errors import DataError, JobError
from hasten.recipes.needed import needed
from hasten.recipes.ocr.maps.polygons import PolygonArray


@dataclass(frozen=True, kw_only=True)
class MapSettings:
    """Settings of the target maps. The defaults are those of the paper (Liao et al., AAAI 2020) and its code.

    Attributes:
        shrink_ratio: How far text is shrunk, r of D = A (1 - r^2) / L: between 0 and 1, exclusive.
        thresh_min: Value of the threshold map far from any border.
        thresh_max: Value of the threshold map on a border.
        min_text_size: Smallest height and width of text to train on, in pixels; 0 includes all.

    Raises:
        JobError: A setting is out of range.
    """

    shrink_ratio: float = 0.4
    thresh_min: float = 0.3
    thresh_max: float = 0.7
    min_text_size: float = 8.0

    def __post_init__(self) -> None:
        if not 0 < self.shrink_ratio < 1:
            raise JobError(f"shrink_ratio must be between 0 and 1, not {self.shrink_ratio}.")
        if not 0 <= self.thresh_min < self.thresh_max <= 1:
            raise JobError(
                f"thresh_min and thresh_max must increase within 0 to 1, not {self.thresh_min} to {self.thresh_max}."
            )
        if not self.min_text_size >= 0:
            raise JobError(f"min_text_size must be at least 0 pixels, not {self.min_text_size}.")


@dataclass(frozen=True, eq=False)
class Maps:
    """The four target maps of an image.

    Attributes:
        shrink: 1 in shrunk text, 0 elsewhere: uint8 [height, width].
        shrink_mask: 0 where `shrink` is not trained on (ignored and vanished text), 1 elsewhere: uint8 [height, width].
        thresh: From thresh_min to thresh_max, which is reached on text borders: float32 [height, width].
        thresh_mask: 1 where `thresh` is trained on, in text and around it, 0 elsewhere: uint8 [height, width].
    """

    shrink: npt.NDArray[np.uint8]
    shrink_mask: npt.NDArray[np.uint8]
    thresh: npt.NDArray[np.float32]
    thresh_mask: npt.NDArray[np.uint8]


DEFAULT = MapSettings()


def make_maps(polygons: PolygonArray, size: tuple[int, int], settings: MapSettings = DEFAULT) -> Maps:
    """Make the four target maps of an image.

    Polygons may extend beyond the image and are clipped. A polygon is masked out of `shrink_mask`, and absent from the other
    maps, if it is ignored, smaller than `min_text_size`, below one square pixel, or vanishes when shrunk. If a polygon
    splits into parts when shrunk, all parts are drawn.

    The function is safe to call from several threads and processes, and its expensive parts release the GIL. The arguments
    are not modified.

    Args:
        polygons: Polygons of the image, in its pixels.
        size: Its height and width in pixels.
        settings: Settings of the maps.

    Raises:
        DataError: The size is not positive.
        MachineError: The extra `recipes` is not installed.
    """
    if min(size) <= 0:
        raise DataError(f"an image must be at least one pixel high and wide, not {size[0]} x {size[1]}.")
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
            ring = np.array(clipper.Execute(distance)[0], np.int32)  # the outline precedes any holes
            boxes[number, :2], boxes[number, 2:] = ring.min(axis=0), ring.max(axis=0)
        cv2.fillPoly(thresh_mask, [ring], 1)
    kernels.draw_borders(points, offsets, distances, boxes, size[1], nearest)
    kernels.to_thresholds(nearest, *span_of(settings))
    return Maps(shrink, shrink_mask, nearest.reshape(size), thresh_mask)


@lru_cache(maxsize=1)
def warm() -> None:
    """Compile the kernels, or load them from disk. Call this before starting workers; otherwise each would compile them.

    Compiled kernels are cached on disk (`__pycache__`, or `NUMBA_CACHE_DIR`), so only the first run on a machine takes
    seconds.

    Raises:
        MachineError: The extra `recipes` is not installed.
    """
    doing("loading the compiled kernels, or compiling them once")
    make_maps(PolygonArray.from_list([[[2, 2], [14, 2], [14, 13], [2, 13]]]), (16, 16))


def blank(
    size: tuple[int, int],
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8], npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Return the initial maps in one block of memory.

    Several blocks would be returned to the system each time, and allocating them again can take longer than drawing.

    Returns:
        d^2 / D^2, set to 1 [height * width]; the shrunk text, set to 0, the threshold mask, set to 0, and the mask of shrunk
        text, set to 1 [height, width].
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
    """Return the corners [n, 2], the polygons' offsets [k + 1], and each distance D in pixels [k], 0 if not trained on.

    All are new arrays in the one memory layout that the kernels are compiled for.
    """
    points, offsets = polygons.points.astype(np.float64, order="C"), polygons.offsets.astype(np.int64)
    ignored, distances = polygons.ignored.astype(np.bool_), np.empty(len(polygons), np.float64)
    worth = 1.0 - float(np.power(settings.shrink_ratio, 2))
    needed(f"{__package__}.kernels").measure(points, offsets, ignored, worth, float(settings.min_text_size), distances)
    return points, offsets, distances


def span_of(settings: MapSettings) -> tuple[np.float32, np.float32]:
    """Return the lowest threshold, and the difference to the highest, rounded like the official code."""
    return np.float32(settings.thresh_min), np.float32(settings.thresh_max - settings.thresh_min)
