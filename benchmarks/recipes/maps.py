"""Target maps: the official way, the exact and the fast kernel, and the cache, in turns on the same pictures.

Every picture has 640 x 640 pixels and lines of text in a loose grid: rotated boxes (four corners) or curved lines (twelve).
One round measures every way once, in an order of its own, each over all pictures of a case; ratios are taken within a round,
and the goals are judged by their medians. Two threads mean that each makes half of the pictures.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.recipes.official import official_maps
from hasten.recipes.ocr.maps import Maps, MapSettings, PolygonArray, make_maps
from hasten.recipes.ocr.maps.ready import warm
from hasten.recipes.ocr.maps.store import MapCache, content_of, map_key

SIZE = (640, 640)
CASES = {"quads_20": (20, 4), "quads_60": (60, 4), "quads_200": (200, 4), "gons_60": (60, 12), "gons_200": (200, 12)}
"""Polygons a picture, and corners a polygon."""
PICTURES = 4
ROUNDS = 15
GOALS = {
    "exact_quads": 10.0, "exact_gons": 12.0, "fast_two_threads": 20.0, "cache_read_ms": 1.5, "images_per_s": 300.0,
}  # fmt: skip
EXACT, FAST = MapSettings(kernel="exact"), MapSettings(kernel="fast")
Shapes = list[npt.NDArray[np.float32]]


def text_lines(count: int, corners: int, seed: int, size: tuple[int, int] = SIZE) -> Shapes:
    """The outlines of lines of text in a loose grid.

    Args:
        count: Lines.
        corners: Of each: 4 is a rotated box, more are a curved line; an even number.
        seed: Of their places, sizes, angles and bends.
        size: Height and width of the picture.

    Returns:
        Of each its corners [corners, 2], clockwise.
    """
    draw = np.random.default_rng((seed, count, corners))
    columns = max(1, round((count / 2.4) ** 0.5))
    rows = -(-count // columns)
    cell_height, cell_width = size[0] / rows, size[1] / columns
    lines: Shapes = []
    for number in draw.permutation(rows * columns)[:count]:
        width, height = cell_width * draw.uniform(0.6, 0.9), cell_height * draw.uniform(0.45, 0.7)
        angle, bend = draw.normal(0.0, 0.1), draw.uniform(-0.4, 0.4) if corners > 4 else 0.0
        along = np.linspace(-0.5, 0.5, corners // 2)
        drop = bend * height * (1.0 - 4.0 * along**2)
        upper = np.stack([along * width, drop - height / 2], axis=1)
        lower = np.stack([along * width, drop + height / 2], axis=1)[::-1]
        turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        middle = ((number % columns + 0.5) * cell_width, (number // columns + 0.5) * cell_height)
        jitter = draw.uniform(-1.0, 1.0, (corners, 2))
        lines.append((np.concatenate([upper, lower]) @ turn + middle + jitter).astype(np.float32))
    return lines


def run(count: int = ROUNDS) -> dict[str, Any]:
    """Measure every case.

    Args:
        count: Rounds.

    Returns:
        Under `cases` of each the raw milliseconds a picture by way, medians, ratios to the official way, and how far the
        fast maps differ from the exact ones; under `cache` the raw milliseconds of a read; under `goals` what was wanted,
        what was seen, and whether it was met.
    """
    warm()
    cases = {}
    for name, (num_lines, corners) in CASES.items():
        cases[name] = _measure(num_lines, corners, count)
        ratios = {way: f"{ratio:.1f}x" for way, ratio in cases[name]["ratios"].items()}
        print(f"{name}: official {cases[name]['median_ms']['official']:.1f} ms a picture; {ratios}", flush=True)
    cache = _measure_cache(count)
    print(f"cache: {cache['median_ms']:.2f} ms a read", flush=True)
    quads, gons = cases["quads_60"], cases["gons_60"]
    seen = {
        "exact_quads": quads["ratios"]["exact"],
        "exact_gons": min(gons["ratios"]["exact"], cases["gons_200"]["ratios"]["exact"]),
        "fast_two_threads": quads["ratios"]["fast_two_threads"],
        "cache_read_ms": cache["median_ms"],
        "images_per_s": 1000.0 / quads["median_ms"]["fast_two_threads"],
    }
    goals = {
        name: {"goal": goal, "seen": seen[name], "met": seen[name] <= goal if name.endswith("_ms") else seen[name] >= goal}
        for name, goal in GOALS.items()
    }
    for name, goal in goals.items():
        print(f"{name}: {goal['seen']:.2f}, goal {goal['goal']}: {'met' if goal['met'] else 'missed'}", flush=True)
    return {"size": SIZE, "pictures": PICTURES, "rounds": count, "cases": cases, "cache": cache, "goals": goals}


def _measure(num_lines: int, corners: int, rounds: int) -> dict[str, Any]:
    """One case: every way in every round."""
    pictures = [text_lines(num_lines, corners, seed) for seed in range(PICTURES)]
    arrays = [PolygonArray.from_list(lines) for lines in pictures]
    none = [False] * num_lines
    with ThreadPoolExecutor(2) as pool:
        ways: dict[str, Callable[[], Any]] = {
            "official": lambda: _make_all(lambda lines: official_maps(lines, none, SIZE), pictures),
            "exact": lambda: _make_all(lambda array: make_maps(array, SIZE, EXACT), arrays),
            "fast": lambda: _make_all(_fast, arrays),
            "fast_two_threads": lambda: list(pool.map(_make_all, (_fast, _fast), (arrays[::2], arrays[1::2]))),
        }
        raw = in_turns(ways, rounds)
    ratios = {way: median(map(_ratio, raw["official"], raw[way])) for way in ways if way != "official"}
    exact, fast = ([make_maps(array, SIZE, settings) for array in arrays] for settings in (EXACT, FAST))
    return {
        "raw_ms": raw,
        "median_ms": {way: median(times) for way, times in raw.items()},
        "ratios": ratios,
        "fast_differs_frac": {
            "shrink": _differing([one.shrink for one in exact], [one.shrink for one in fast]),
            "thresh_mask": _differing([one.thresh_mask for one in exact], [one.thresh_mask for one in fast]),
        },
        "fast_mean_threshold_difference": _mean_difference(exact, fast),
    }


def _fast(array: PolygonArray) -> Maps:
    return make_maps(array, SIZE, FAST)


def _make_all(make: Callable[[Any], Any], pictures: Sequence[Any]) -> None:
    """Make the maps of several pictures and let each go at once, as a loader does that hands them on."""
    for picture in pictures:
        make(picture)


def in_turns(ways: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Milliseconds a picture of each way in each round, the ways in an order of its own; one round before warms up.

    Args:
        ways: Each makes the maps of `PICTURES` pictures.
        rounds: That count.
    """
    order = random.Random(7)
    raw: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(rounds + 1):
        for way in order.sample(list(ways), len(ways)):
            begin = perf_counter()
            ways[way]()
            if number:
                raw[way].append(1000.0 * (perf_counter() - begin) / PICTURES)
    return raw


def _measure_cache(rounds: int) -> dict[str, Any]:
    """Reads of packed maps, each of another picture; the file is in the page cache, as it is after the first epoch."""
    arrays = [PolygonArray.from_list(text_lines(60, 4, seed)) for seed in range(16)]
    with tempfile.TemporaryDirectory(prefix="hasten-") as folder:
        cache = MapCache(Path(folder), 2**26)
        keys = [map_key(str(seed), content_of(array), None, SIZE, EXACT) for seed, array in enumerate(arrays)]
        for key, array in zip(keys, arrays, strict=True):
            cache.get_or_make(key, array, SIZE, EXACT)
        raw = []
        for _ in range(rounds):
            for key in keys:
                begin = perf_counter()
                cache.get(key)
                raw.append(1000.0 * (perf_counter() - begin))
        bytes_a_picture = cache.num_bytes / len(keys)
        cache.close()
    return {"raw_ms": raw, "median_ms": median(raw), "bytes_a_picture": bytes_a_picture}


def _ratio(official: float, other: float) -> float:
    return official / other


def _differing(exact: Sequence[npt.NDArray[np.uint8]], fast: Sequence[npt.NDArray[np.uint8]]) -> float:
    """Pixels that differ, as a share of those that are set."""
    differing = sum(int(np.count_nonzero(one != other)) for one, other in zip(exact, fast, strict=True))
    return differing / sum(int(np.count_nonzero(one)) for one in exact)


def _mean_difference(exact: Sequence[Maps], fast: Sequence[Maps]) -> float:
    """The mean difference of the thresholds where they are trained."""
    pairs = zip(exact, fast, strict=True)
    return float(np.mean([np.abs(one.thresh - other.thresh)[one.thresh_mask > 0].mean() for one, other in pairs]))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recipes.maps", description=__doc__)
    parser.add_argument("--count", type=int, default=ROUNDS, help="rounds")
    run(parser.parse_args().count)


if __name__ == "__main__":
    main()
