"""What a hit and a miss cost in each home of a cache, for a small value and a large one."""

from __future__ import annotations

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

from upshift.data.cache import Cache, LmdbCache, MappedCache, MemoryCache, RedisCache

VALUES = {"1 KiB": 2**10, "150 KiB": 150 * 2**10}
COUNT, ROUNDS, MANY = 500, 5, 64
LIMIT = 2**30


def measure_caches(folder: Path) -> list[dict[str, Any]]:
    """Microseconds of a hit, a miss, a put, and a hit among many asked for at once."""
    with _redis(folder) as url:
        homes: dict[str, Cache] = {
            "memory": MemoryCache(LIMIT),
            "mapped file": MappedCache(folder / "mapped", LIMIT),
            "LMDB": LmdbCache(folder / "lmdb", LIMIT),
            **({"Redis": RedisCache(url)} if url else {}),
        }
        rows = []
        for size_name, size in VALUES.items():
            value = np.random.default_rng(0).integers(0, 255, size, dtype=np.uint8)
            for name, cache in homes.items():
                times: dict[str, list[float]] = {"put_us": [], "hit_us": [], "miss_us": [], "hit_many_us": []}
                for number in range(ROUNDS):
                    keys = [f"{size_name} {number} {key}" for key in range(COUNT)]
                    times["put_us"].append(_each(lambda key, cache=cache, value=value: cache.put(key, value), keys))
                    times["hit_us"].append(_each(cache.get, keys))
                    times["miss_us"].append(_each(cache.get, [f"no {key}" for key in keys]))
                    groups = [keys[start : start + MANY] for start in range(0, COUNT, MANY)]
                    times["hit_many_us"].append(_each(cache.get_many, groups) * len(groups) / COUNT)
                rows.append(
                    {
                        "workload": "caches",
                        "system": name,
                        "value": size_name,
                        **{k: median(v) for k, v in times.items()},
                        "raw": times,
                    }
                )
        for cache in homes.values():
            cache.close()
    return rows


def _each(act: Any, things: list[Any]) -> float:
    started = perf_counter()
    for thing in things:
        act(thing)
    return 1e6 * (perf_counter() - started) / len(things)


@contextmanager
def _redis(folder: Path) -> Iterator[str]:
    """A server of our own; an empty URL where none is installed."""
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
