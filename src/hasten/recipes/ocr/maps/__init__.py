"""Target maps of a text detector (DBNet): where text is, where its border is, and which pixels count.

polygons = PolygonArray.from_list([[[10, 10], [90, 12], [89, 40], [9, 38]]])
maps = make_maps(polygons, (640, 640), MapSettings())

Two kernels make them: `exact` gives what the official code gives, `fast` a signed distance. `ready.warm` compiles both
before workers fork, `store.MapCache` keeps what is the same at every visit, `ahead.make_ahead` fills it, and `validity.mend`
makes drawable polygons of what people annotated.
"""

from hasten.recipes.ocr.maps.make import make_maps
from hasten.recipes.ocr.maps.polygons import PolygonArray
from hasten.recipes.ocr.maps.settings import Maps, MapSettings

__all__ = ["MapSettings", "Maps", "PolygonArray", "make_maps"]
