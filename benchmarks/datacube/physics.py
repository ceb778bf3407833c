"""Measure batches, augmentation and constraints of the datacube recipe against the usual way, in turns on the same fields.

A round measures every way once, in random order. Ratios are computed within a round, and goals are judged by their medians.
In `batch`, the usual way starts from variables in memory, and the kernel from the same fields as one record per time step,
as a converted store has them; a further row converts the whole cube again for every batch. A loader worker has one thread.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from statistics import median
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch

from benchmarks.datacube.naive_physics import FIVE, VARIABLES, NaiveAugmentation, naive_batch
from hasten.data.cube.channels import Channel
from hasten.data.cube.regrid import Grid
from hasten.recipes.datacube.augment import Augmentation, Augmenter, key
from hasten.recipes.datacube.augment_kernel import augment
from hasten.recipes.datacube.constraints import Constraints
from hasten.recipes.datacube.synth import STANDARD_NAMES, UNITS, DrawnCube

ROUNDS = 15
GOALS = {"batch": 10.0, "augmentation": 5.0, "constraints": 3.0}
PAUSE_S = 0.03
"""Before each measurement: OpenMP threads of the one before wait actively for some milliseconds."""
AGREEMENT = 1e-5
"""Largest relative difference of any constraint from the usual form in double precision."""
NOISE = Augmentation(temperature_noise=0.5, pressure_noise=50.0, humidity_noise=1e-4)
ALL = Augmentation(
    temperature_noise=0.5, pressure_noise=50.0, humidity_noise=1e-4, flip_frac=0.5, rotate_degrees=180.0, shift_steps=2,
    smooth_steps=0.5, scale_frac=0.1,
)  # fmt: skip
LEVELS, SIDE, STEPS, BATCH, TIMES = 4, 64, 8, 8, 40
LEADS = 4


def run(_record: Mapping[str, Any], count: int = ROUNDS) -> dict[str, Any]:
    """Measure all parts.

    Args:
        count: Number of rounds.

    Returns:
        Raw seconds of each way, medians, ratios, the agreement of the constraints, and which goals are met.
    """
    cube = DrawnCube(num_times=TIMES, num_levels=LEVELS, num_latitudes=SIDE, num_longitudes=SIDE)
    drawn = [cube.at(time) for time in range(TIMES)]
    variables = {name: np.stack([fields[name] for fields in drawn]) for name in VARIABLES}
    grid = Grid(tuple(cube.axes["latitude"].tolist()), tuple(cube.axes["longitude"].tolist()))
    channels = [
        Channel(variable=name, standard_name=STANDARD_NAMES[name], units=UNITS[name], level=height, level_units="m")
        for name in VARIABLES
        for height in cube.axes["height"].tolist()
    ]
    record = torch.from_numpy(np.concatenate([variables[name] for name in VARIABLES], axis=1))
    parts = {
        "batch": _batch(variables, record, channels, grid, count),
        "augmentation": _augmentation(record, channels, grid, count),
        "constraints": _constraints(record, channels, grid, count),
    }
    for name, part in parts.items():
        print(f"{name}: {part['median_ms']} ms; {part['ratios']}", flush=True)
    seen = {name: part["ratios"][part["judged"]] for name, part in parts.items()}
    agreed = parts["constraints"]["largest_difference"] <= AGREEMENT
    return {
        "sizes": {"levels": LEVELS, "side": SIDE, "steps": STEPS, "batch": BATCH, "leads": LEADS},
        "threads": torch.get_num_threads(),
        "parts": parts,
        "goals": {
            name: {"goal": goal, "seen": seen[name], "reached": seen[name] >= goal and (name != "constraints" or agreed)}
            for name, goal in GOALS.items()
        },
    }  # fmt: skip


def alone(way: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    """Give a way one thread of PyTorch, as a loader worker has."""

    def run() -> torch.Tensor:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return way()
        finally:
            torch.set_num_threads(threads)

    return run


def _batch(variables: Any, record: torch.Tensor, channels: Any, grid: Grid, count: int) -> dict[str, Any]:
    augmenter, epoch = Augmenter(NOISE, channels, grid), iter(range(1_000_000))

    def fused(source: torch.Tensor, threads: int) -> torch.Tensor:
        starts = [random.randrange(TIMES - STEPS) for _ in range(BATCH)]
        keys = [key(0, next(epoch), start) for start in starts]
        return augment(augmenter, [source[start : start + STEPS] for start in starts], keys, num_threads=threads)

    def converted() -> torch.Tensor:
        return torch.from_numpy(np.concatenate([variables[name] for name in VARIABLES], axis=1))

    return _in_turns(
        {
            "usual": lambda: naive_batch(variables, [random.randrange(TIMES - STEPS) for _ in range(BATCH)], STEPS, NOISE),
            "kernel": lambda: fused(record, 1),
            "kernel, 2 threads": lambda: fused(record, 2),
            "kernel, converting the whole cube": lambda: fused(converted(), 1),
            "copy": alone(lambda: torch.stack([record[start : start + STEPS] for start in range(BATCH)])),
        },
        count,
        judged="kernel",
    )


def _augmentation(record: torch.Tensor, channels: Any, grid: Grid, count: int) -> dict[str, Any]:
    mean = record.double().mean((0, 2, 3)).tolist()
    fields = torch.stack([record[start : start + STEPS + ALL.shift_steps] for start in range(BATCH)])
    augmenter, usual = Augmenter(ALL, channels, grid, mean=mean), NaiveAugmentation(ALL, LEVELS, mean)
    epoch = iter(range(1_000_000))

    def keys() -> list[int]:
        return [key(0, next(epoch), index) for index in range(BATCH)]

    return _in_turns(
        {
            "usual": alone(lambda: usual(fields)),
            "usual, all threads": lambda: usual(fields),
            "torch": alone(lambda: augmenter(fields, keys())),
            "kernel": alone(lambda: augment(augmenter, fields, keys())),
            "kernel, 2 threads": lambda: augment(augmenter, fields, keys(), num_threads=2),
            "copy": alone(fields[:, :STEPS].clone),
        },
        count,
        judged="kernel",
    )


def _constraints(record: torch.Tensor, channels: Any, grid: Grid, count: int) -> dict[str, Any]:
    constraints = Constraints(channels, grid)
    heights = [float(channel.level or 0.0) for channel in channels[:LEVELS]]
    five = {name: form(heights, grid.latitude) for name, form in FIVE.items()}
    last = torch.stack([record[start] for start in range(BATCH)])
    std = record.std((0, 2, 3))[:, None, None]
    generator = torch.Generator().manual_seed(0)
    truth = torch.stack([record[start + 1 : start + 1 + LEADS] for start in range(BATCH)])
    forecast = truth + 0.1 * std * (1 + torch.randn(truth.shape, generator=generator))

    def usual(given: torch.Tensor, start: torch.Tensor) -> dict[str, torch.Tensor]:
        return {name: form(given, start) for name, form in five.items()}

    def trained(total: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        given = forecast.detach().requires_grad_()
        return torch.autograd.grad(total(given), given)[0]

    whole = usual(forecast.double(), last.double())
    ours, theirs = constraints(forecast, last)[1], usual(forecast, last)
    differences = {name: abs(float(ours[name]) / float(whole[name]) - 1) for name in FIVE}
    ways: dict[str, Callable[[], torch.Tensor]] = {
        "usual": lambda: trained(lambda given: torch.stack(list(usual(given, last).values())).sum()),
        "one pass": lambda: trained(lambda given: constraints(given, last)[0]),
        "transform and its gradient alone": lambda: trained(lambda given: torch.view_as_real(torch.fft.rfft(given)).sum()),
    }
    slopes = [way() for way in ways.values()]
    return {
        **_in_turns(ways, count, judged="one pass"),
        "differences": differences,
        "largest_difference": max(differences.values()),
        "differences_of_the_usual_form_in_float32": {
            name: abs(float(theirs[name]) / float(whole[name]) - 1) for name in FIVE
        },
        "gradient_difference": float((slopes[0] - slopes[1]).norm() / slopes[0].norm()),
    }


def _in_turns(ways: Mapping[str, Callable[[], torch.Tensor]], count: int, judged: str) -> dict[str, Any]:
    for way in ways.values():
        way()
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    cpu_seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(count):
        for name in random.sample(list(ways), len(ways)):
            ready = perf_counter() + PAUSE_S
            while perf_counter() < ready:
                pass  # stay awake: a processor that slept is slow at first
            wall, cpu = perf_counter(), process_time()
            ways[name]()
            seconds[name].append(perf_counter() - wall)
            cpu_seconds[name].append(process_time() - cpu)
    ratios = {
        name: round(median(a / b for a, b in zip(seconds["usual"], seconds[name], strict=True)), 2)
        for name in ways
        if name != "usual"
    }
    medians = {name: round(1e3 * median(values), 3) for name, values in seconds.items()}
    return {"judged": judged, "ratios": ratios, "median_ms": medians, "seconds": seconds, "cpu_seconds": cpu_seconds}
