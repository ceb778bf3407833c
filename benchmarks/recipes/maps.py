"""Measure target maps: the official implementation and the recipe's kernels, in turns on the same images.

Every image has 640 x 640 pixels and lines of text in a loose grid: rotated boxes (four corners) or curved lines (twelve). A
round measures every implementation once, in random order, each over all images of a case. Ratios are computed within a
round, and goals are judged by their medians.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from hasten.recipes.ocr.maps import MapSettings, PolygonArray, make_maps
from hasten.recipes.ocr.maps.targets import warm
from hasten.recipes.ocr.naive import naive_maps

SIZE = (640, 640)
CASES = {"quads_20": (20, 4), "quads_60": (60, 4), "quads_200": (200, 4), "gons_60": (60, 12), "gons_200": (200, 12)}
"""Polygons per image, and corners per polygon."""
PICTURES = 4
ROUNDS = 15
GOALS = {"exact_quads": 10.0, "exact_gons": 12.0}
Shapes = list[npt.NDArray[np.float32]]


def text_lines(count: int, corners: int, seed: int, size: tuple[int, int] = SIZE) -> Shapes:
    """Return the outlines of text lines in a loose grid.

    Args:
        count: Number of lines.
        corners: Corners of each line: 4 is a rotated box, more are a curved line; an even number.
        seed: Seed of positions, sizes, angles and curvature.
        size: Height and width of the image.

    Returns:
        The corners [corners, 2] of each line, clockwise.
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
        count: Number of rounds.

    Returns:
        `cases` with the raw milliseconds per image of each implementation, medians, and ratios to the official one; `goals`
        with the target, the measurement, and whether it was met.
    """
    warm()
    cases = {}
    for name, (num_lines, corners) in CASES.items():
        cases[name] = _measure(num_lines, corners, count)
        ratios = {way: f"{ratio:.1f}x" for way, ratio in cases[name]["ratios"].items()}
        print(f"{name}: official {cases[name]['median_ms']['official']:.1f} ms per image; {ratios}", flush=True)
    seen = {
        "exact_quads": cases["quads_60"]["ratios"]["exact"],
        "exact_gons": min(cases[name]["ratios"]["exact"] for name in ("gons_60", "gons_200")),
    }
    goals = {name: {"goal": goal, "seen": seen[name], "met": seen[name] >= goal} for name, goal in GOALS.items()}
    for name, goal in goals.items():
        print(f"{name}: {goal['seen']:.2f}, goal {goal['goal']}: {'met' if goal['met'] else 'missed'}", flush=True)
    return {"size": SIZE, "pictures": PICTURES, "rounds": count, "cases": cases, "goals": goals}


def _measure(num_lines: int, corners: int, rounds: int) -> dict[str, Any]:
    """Measure one case: every implementation in every round."""
    arrays = [PolygonArray.from_list(text_lines(num_lines, corners, seed)) for seed in range(PICTURES)]
    ways: dict[str, Callable[[], Any]] = {
        "official": lambda: _make_all(lambda array: naive_maps(array, SIZE, MapSettings()), arrays),
        "exact": lambda: _make_all(lambda array: make_maps(array, SIZE), arrays),
    }
    raw = in_turns(ways, rounds)
    return {
        "raw_ms": raw,
        "median_ms": {way: median(times) for way, times in raw.items()},
        "ratios": {"exact": median(map(_ratio, raw["official"], raw["exact"]))},
    }


def _make_all(make: Callable[[Any], Any], images: Sequence[Any]) -> None:
    """Make the maps of several images and release each at once, like a loader that passes them on."""
    for image in images:
        make(image)


def in_turns(ways: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Return milliseconds per image of each implementation in each round, in random order, after one warm-up round.

    Args:
        ways: Functions that each make the maps of `PICTURES` images.
        rounds: Number of counted rounds.
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


def _ratio(official: float, other: float) -> float:
    return official / other


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recipes.maps", description=__doc__)
    parser.add_argument("--count", type=int, default=ROUNDS, help="rounds")
    run(parser.parse_args().count)


if __name__ == "__main__":
    main()
