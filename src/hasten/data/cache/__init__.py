"""Compute deterministic values once and reuse them, through one interface with three storage backends.

cache = MemoryCache(max_bytes=2**30)                 in this process
cache = LmdbCache("cache/", max_bytes=2**33)         shared by all processes of this machine
cache = RedisCache("redis://localhost")              shared between machines

@cached(cache)
def metadata(path): ...

dataset = CachedDataset(dataset, cache, version="1")
"""

from hasten.data.cache.contract import Cache, CacheStats
from hasten.data.cache.keys import key_of
from hasten.data.cache.lmdb import LmdbCache
from hasten.data.cache.memory import MemoryCache
from hasten.data.cache.redis import RedisCache
from hasten.data.cache.wrap import CachedDataset, cached, known_metadata, known_validation

__all__ = [
    "Cache",
    "CacheStats",
    "CachedDataset",
    "LmdbCache",
    "MemoryCache",
    "RedisCache",
    "cached",
    "key_of",
    "known_metadata",
    "known_validation",
]
