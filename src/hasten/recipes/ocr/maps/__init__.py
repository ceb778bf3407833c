"""Target maps of a text detector (DBNet): texts, their borders, and which pixels count.

polygons = PolygonArray.from_list([[[10, 10], [90, 12], [89, 40], [9, 38]]])
maps = make_maps(polygons, (640, 640), MapSettings())

`targets.warm` compiles the kernels before workers fork, and `validity.repair` turns annotations into drawable polygons.
"""

from hasten.recipes.ocr.maps.polygons import PolygonArray
from hasten.recipes.ocr.maps.targets import Maps, MapSettings, make_maps

__all__ = ["MapSettings", "Maps", "PolygonArray", "make_maps"]
