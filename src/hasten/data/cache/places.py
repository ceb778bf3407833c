"""Caches named by text: what a command line or a settings file can say."""

from __future__ import annotations

from pathlib import Path

from hasten.core.errors import DataError
from hasten.data.cache.contract import Cache
from hasten.data.cache.lmdb import LmdbCache
from hasten.data.cache.redis import RedisCache


def open_cache(place: str, max_bytes: int) -> Cache:
    """The cache at a place.

    Args:
        place: `redis://host:port/0` (or `rediss://`, `unix://`), or a folder, which holds an LMDB database.
        max_bytes: That values may take, where the cache is made now.

    Raises:
        DataError: It is none of these.
    """
    scheme, found, _ = place.partition("://")
    if found:
        if scheme in {"redis", "rediss", "unix"}:
            return RedisCache(place)
        raise DataError(f"{place} is no cache: give redis://host:port/0, or a folder.")
    folder = Path(place)
    if folder.is_file():
        raise DataError(f"{place} is a file: give a folder.")
    return LmdbCache(folder, max_bytes)
