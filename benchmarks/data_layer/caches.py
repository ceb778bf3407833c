"""Measure the time of a hit and a miss for each cache backend, with a small and a large value."""

from __future__ import annotations

import random
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.data_layer.sizes import Sizes
from hasten.data.cache import Cache, LmdbCache, MemoryCache, RedisCache

VALUES = {"1 KiB": 2**10, "150 KiB": 150 * 2**10}
ROUNDS, MANY = 5, 64
LIMIT = 2**30
Times = dict[str, list[float]]


def measure_caches(folder: Path, sizes: Sizes) -> dict[str, dict[str, Any]]:
    """Return microseconds of a put, a hit, a miss, and a hit in a batch of 64, by value and backend, measured in turns."""
    order = random.Random("caches")
    found: dict[str, dict[str, Any]] = {}
    with _redis(folder) as url:
        for value_name, num_bytes in VALUES.items():
            place = folder / value_name.replace(" ", "")
            homes: dict[str, Cache] = {
                "memory": MemoryCache(LIMIT),
                "LMDB": LmdbCache(place / "lmdb", LIMIT),
                **({"Redis": RedisCache(url)} if url else {}),
            }
            value = np.random.default_rng(0).integers(0, 255, num_bytes, dtype=np.uint8)
            times: dict[str, Times] = {name: {} for name in homes}
            for number in range(ROUNDS):
                keys = [f"{value_name} {number} {key}" for key in range(sizes.cache_keys)]
                for name in order.sample(list(homes), len(homes)):
                    for what, taken in _turn(homes[name], keys, value).items():
                        times[name].setdefault(what, []).append(taken)
            for name, cache in homes.items():
                medians = {what: median(taken) for what, taken in times[name].items()}
                found[f"{value_name}: {name}"] = {**medians, "raw": times[name]}
                cache.close()
    return found


def _turn(cache: Cache, keys: list[str], value: Any) -> dict[str, float]:
    groups = [keys[start : start + MANY] for start in range(0, len(keys), MANY)]
    return {
        "put_us": _each(lambda key: cache.put(key, value), keys),
        "hit_us": _each(cache.get, keys),
        "miss_us": _each(cache.get, [f"no {key}" for key in keys]),
        "hit_many_us": _each(cache.get_many, groups) * len(groups) / len(keys),
    }


def _each(act: Any, things: list[Any]) -> float:
    started = perf_counter()
    for thing in things:
        act(thing)
    return 1e6 * (perf_counter() - started) / len(things)


@contextmanager
def _redis(folder: Path) -> Iterator[str]:
    """Start a private Redis server; yield its URL, empty if Redis is not installed."""
    if shutil.which("redis-server") is None:
        yield ""
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        for _ in range(100):
            try:
                socket.create_connection(("127.0.0.1", port), 0.2).close()
                break
            except OSError:
                time.sleep(0.05)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        server.kill()
        server.wait()
