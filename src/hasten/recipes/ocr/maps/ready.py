"""Compile before workers are forked: each of them would otherwise compile for itself, in its first batch.

Compiled kernels are kept on disk (`__pycache__`, or `NUMBA_CACHE_DIR`): only the first run on a machine takes seconds.
"""

from __future__ import annotations

from hasten.recipes.needed import needed
from hasten.recipes.ocr.maps.make import make_maps
from hasten.recipes.ocr.maps.packed import pack, unpack
from hasten.recipes.ocr.maps.polygons import PolygonArray
from hasten.recipes.ocr.maps.settings import MapSettings

MODULES = ("kernels_measure", "kernels_dilate", "kernels_exact", "kernels_fast", "kernels_packed")


def warm() -> None:
    """Compile all kernels, or load them from disk; nothing when that is done. Call it in the process that starts workers.

    Raises:
        MachineError: The extra `recipes` is not installed.
    """
    polygons = PolygonArray.from_list([[[2, 2], [14, 2], [14, 13], [2, 13]]])
    for settings in (MapSettings(kernel="exact"), MapSettings(kernel="fast")):
        unpack(pack(make_maps(polygons, (16, 16), settings), settings))


def compiled() -> dict[str, int]:
    """In how many forms each kernel is there in this process: the same after `warm` as ever after it.

    Kernels that only others call have none where those were loaded from disk: they are part of them.

    Raises:
        MachineError: The extra `recipes` is not installed.
    """
    found: dict[str, int] = {}
    for module in MODULES:
        for name, value in vars(needed(f"{__package__}.{module}")).items():
            if hasattr(value, "signatures"):
                found[f"{module}.{name}"] = len(value.signatures)
    return found
