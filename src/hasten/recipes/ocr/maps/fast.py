"""Target maps from a signed distance: several times as fast, equal but for pixels near borders and corners.

Where they differ from `exact`:

- the two masks in pixels on the borders of shrunk and of dilated text, since no corner is rounded to an integer on the way,
- the thresholds beside edges that are shorter than 2 D, since the official law, which is no distance to a segment, gives
  pixels there a larger distance than they have.

Take it where the accuracy of the trained model says that this does not matter; a benchmark of the recipe compares the two.
"""

from __future__ import annotations

import numpy as np

from hasten.recipes.needed import needed
from hasten.recipes.ocr.maps.exact import blank, measured, span_of
from hasten.recipes.ocr.maps.polygons import PolygonArray
from hasten.recipes.ocr.maps.settings import Maps, MapSettings


def fast_maps(polygons: PolygonArray, size: tuple[int, int], settings: MapSettings) -> Maps:
    """The four target maps of a picture, see `make_maps`."""
    cv2, kernels, finishing = (
        needed(name) for name in ("cv2", f"{__package__}.kernels_fast", f"{__package__}.kernels_exact")
    )
    points, offsets, distances = measured(polygons, settings)
    drawn = np.empty(len(polygons), np.int64)
    while True:
        nearest, shrink, thresh_mask, shrink_mask = blank(size)
        flat = shrink.reshape(-1), thresh_mask.reshape(-1)
        kernels.draw_distances(points, offsets, distances, size[1], nearest, *flat, drawn)
        vanished = (drawn == 0) & (distances > 0)
        if not vanished.any():
            break
        distances[vanished] = 0.0  # rare: text with no pixel left when shrunk leaves no trace in the other maps either
    finishing.to_thresholds(nearest, *span_of(settings))
    for number in np.flatnonzero(drawn == 0):
        cv2.fillPoly(shrink_mask, [polygons.polygon(int(number)).astype(np.int32)], 0)
    return Maps(shrink, shrink_mask, nearest.reshape(size), thresh_mask)
