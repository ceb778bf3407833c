"""What is deterministic is computed once: one small interface, four homes.

cache = MemoryCache(max_bytes=2**30)                 this process
cache = MappedCache("cache/", max_bytes=2**33)       one file, shared by the processes of this machine
cache = LmdbCache("cache.lmdb", max_bytes=2**33)     the same in a database, which also forgets
cache = RedisCache("redis://localhost")              shared between machines

@cached(cache)
def metadata(path): ...

dataset = CachedDataset(dataset, cache, version="1")
"""

from hasten.data.cache.contract import Cache, CacheStats
from hasten.data.cache.keys import key_of
from hasten.data.cache.known import known_metadata, known_validation
from hasten.data.cache.lmdb import LmdbCache
from hasten.data.cache.mapped import MappedCache
from hasten.data.cache.memory import MemoryCache
from hasten.data.cache.redis import RedisCache
from hasten.data.cache.wrap import CachedDataset, cached

__all__ = [
    "Cache",
    "CacheStats",
    "CachedDataset",
    "LmdbCache",
    "MappedCache",
    "MemoryCache",
    "RedisCache",
    "cached",
    "key_of",
    "known_metadata",
    "known_validation",
]
