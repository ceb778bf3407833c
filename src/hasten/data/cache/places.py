"""Open caches named by text, for command lines and settings files."""

from __future__ import annotations

from pathlib import Path

from hasten.core.errors import DataError
from hasten.data.cache.contract import Cache
from hasten.data.cache.lmdb import LmdbCache
from hasten.data.cache.redis import RedisCache


def open_cache(place: str, max_bytes: int) -> Cache:
    """Open the cache at a place.

    Args:
        place: `redis://host:port/0` (or `rediss://`, `unix://`), or the folder of an LMDB database.
        max_bytes: Maximum size of a newly created LMDB database.

    Raises:
        DataError: The place is neither of these.
    """
    scheme, separator, _ = place.partition("://")
    if separator:
        if scheme in {"redis", "rediss", "unix"}:
            return RedisCache(place)
        raise DataError(f"{place} is not a cache: use redis://host:port/0, or a folder.")
    folder = Path(place)
    if folder.is_file():
        raise DataError(f"{place} is a file: use a folder.")
    return LmdbCache(folder, max_bytes)
