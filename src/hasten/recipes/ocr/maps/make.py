"""Target maps of a picture by the kernel that was asked for."""

from __future__ import annotations

from hasten.core.errors import DataError
from hasten.recipes.ocr.maps.exact import exact_maps
from hasten.recipes.ocr.maps.fast import fast_maps
from hasten.recipes.ocr.maps.polygons import PolygonArray
from hasten.recipes.ocr.maps.settings import Maps, MapSettings

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
        settings: Which maps, and by which kernel.

    Raises:
        DataError: The size is not positive.
        MachineError: The extra `recipes` is not installed.
    """
    if min(size) <= 0:
        raise DataError(f"a picture is at least one pixel high and wide, not {size[0]} x {size[1]}.")
    return (exact_maps if settings.kernel == "exact" else fast_maps)(polygons, size, settings)
