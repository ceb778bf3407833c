"""Keep target maps that are the same at every visit: those of validation, and of training without random transforms.

Maps of a random crop or rotation never come again. A cache of them only fills up and makes training slower; make those anew.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from hasten.data.cache.contract import CacheStats
from hasten.data.cache.keys import key_of
from hasten.data.cache.mapped import MappedCache
from hasten.recipes.ocr.maps.make import make_maps
from hasten.recipes.ocr.maps.packed import pack, unpack
from hasten.recipes.ocr.maps.polygons import PolygonArray
from hasten.recipes.ocr.maps.settings import Maps, MapSettings


def map_key(picture: str, content: str, transform: Any, size: tuple[int, int], settings: MapSettings) -> str:
    """The key of the maps of a picture: all that they depend on, the code that makes them included.

    Args:
        picture: Its name in the dataset.
        content: What tells one content of picture and labels from another, as `content_of` does.
        transform: What was done to it geometrically: plain data, such as a scale and offsets. Colours do not matter.
        size: Height and width of the maps in pixels.
        settings: They were made with.

    Raises:
        DataError: The transform is no plain data.
    """
    return key_of("maps", picture, content, transform, tuple(size), asdict(settings), code_version())


def content_of(polygons: PolygonArray, picture: bytes = b"") -> str:
    """What tells one content from another: the polygons as annotated, each with its bounds, and the picture's bytes."""
    return key_of(polygons.points, polygons.offsets, polygons.ignored, picture)


@cache
def code_version() -> str:
    """A digest of the code that makes and packs maps: another version never finds what this one wrote."""
    folder = Path(__file__).parent
    return key_of(*((path.name, path.read_bytes()) for path in sorted(folder.glob("*.py"))))


class MapCache:
    """Target maps in a memory-mapped file that the processes of a machine share.

    One process writes at a time, behind the others' values; readers take no lock and read through a memory map. A value that
    was not written to its end, or was damaged since, counts as missing. When the file is full, nothing more is kept.

    Args:
        path: Its folder.
        max_bytes: That the maps may take together; a picture of 640 x 640 takes about 0.57 MB. The first to open it decides.

    Raises:
        DataError: The folder cannot be made, or max_bytes is not above 0.
        CorruptError: It holds something else.
    """

    def __init__(self, path: str | os.PathLike[str], max_bytes: int) -> None:
        self._values = MappedCache(path, max_bytes)

    def get(self, key: str) -> Maps | None:
        """The maps under a key, arrays of their own; None where they are not there."""
        (data,) = self._values.read([key])
        maps = None if data is None else unpack(data)
        self._values.count(hits=maps is not None, misses=maps is None, damaged=data is not None and maps is None)
        return maps

    def put(self, key: str, maps: Maps, settings: MapSettings) -> bool:
        """Keep maps made with these settings; False where there is no room."""
        return self.put_packed({key: pack(maps, settings)}) == 1

    def get_or_make(self, key: str, polygons: PolygonArray, size: tuple[int, int], settings: MapSettings) -> Maps:
        """The maps under a key; made and kept where they are not there.

        Maps that were just made go the way through the cache's 8 bits too, so that every visit gives the same.
        """
        maps = self.get(key)
        if maps is None:
            data = pack(make_maps(polygons, size, settings), settings)
            self.put_packed({key: data})
            maps = unpack(data)
            assert maps is not None  # noqa: S101  it was packed in the line before the last
        return maps

    def put_packed(self, values: Mapping[str, bytes]) -> int:
        """Keep packed maps under their keys; how many there was room for."""
        kept = self._values.write(values)
        self._values.count(puts=kept, refused=len(values) - kept)
        return kept

    def missing(self, keys: Iterable[str]) -> set[str]:
        """Those of the keys under which there are no whole maps; not counted as questions."""
        return {key for key in keys if (data := self._values.read([key])[0]) is None or unpack(data) is None}

    @property
    def stats(self) -> CacheStats:
        """What this process asked of it."""
        return self._values.stats

    @property
    def hit_frac(self) -> float | None:
        """Share of this process's questions that were answered; None before the first."""
        asked = self.stats.hits + self.stats.misses
        return self.stats.hits / asked if asked else None

    @property
    def num_bytes(self) -> int:
        """Bytes that the maps take."""
        return self._values.num_bytes

    def __len__(self) -> int:
        return len(self._values)

    def close(self) -> None:
        """Let the file go; it is opened anew when it is used again."""
        self._values.close()
