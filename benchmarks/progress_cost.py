"""Measure the overhead of reporting a run's progress: sampled phases, memory, metric lines and the terminal display.

There are two answers. The first adds up the measured times of all parts in a stretch of training reported as `hasten run`
does it, and is compared with the limit. The second compares the same loop with and without reporting, interleaved in one
process in short turns. It would reveal costs that the sum misses, but its interval is as wide as this machine is noisy.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from rich.console import Console

from benchmarks.own_cost import JOBS, TURN_S
from benchmarks.record import ROOT, record
from hasten.cli.progress import TrainingProgress
from hasten.core.job import Job
from hasten.core.stats import paired_interval
from hasten.core.target import load_job
from hasten.train.build import build
from hasten.train.clock import PHASES, Clock, NoClock, SampledClock
from hasten.train.loop import Loop
from hasten.train.periodic import PeriodicWork

TURNS = 201
BOUND_FRAC = 0.005
CLOCKED = 20_000
"""Number of updates over which an idle clock is timed."""


def run_progress_cost(turns: int = TURNS) -> Path:
    """Measure both jobs."""
    result = {name: measure(load_job(str(ROOT / target)), turns) for name, target in JOBS.items()}
    return record("progress", result, f"python -m benchmarks progress --count {turns}")


def measure(job: Job, turns: int) -> dict[str, Any]:
    """Train a job in turns with and without progress reports."""
    loop = Loop(build(job))
    loop.run(2)
    started = perf_counter()
    loop.run(2)
    updates = max(int(TURN_S / ((perf_counter() - started) / 2)), 1)
    clock, spent = SampledClock(loop.live.device), [0.0]
    seconds: dict[str, list[float]] = {"told": [], "silent": []}
    with tempfile.TemporaryDirectory() as folder, Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        console = Console(file=nowhere, force_terminal=True, width=120)
        with (
            TrainingProgress(console) as progress,
            PeriodicWork(loop, Path(folder), planned=3 * turns * updates, on_report=progress.on_report) as around,
        ):

            def after_update() -> None:
                before = perf_counter()
                around.after_update()
                spent[0] += perf_counter() - before

            def told() -> None:
                loop.clock = clock
                loop.run(updates, on_update=after_update)

            def silent() -> None:
                loop.clock = NoClock()
                loop.run(updates)

            started = perf_counter()
            for _ in range(turns):
                told()
            reports_frac = spent[0] / (perf_counter() - started)
            arms: dict[str, Callable[[], None]] = {"told": told, "silent": silent}
            for turn in range(turns):
                for name in list(arms) if turn % 2 else reversed(arms):
                    started = perf_counter()
                    arms[name]()
                    seconds[name].append(perf_counter() - started)
    update_s = median(seconds["silent"]) / updates
    parts = {
        "reports_frac": reports_frac,
        "clock_idle_frac": clock_idle_s(loop.live.device) / update_s,
        "clock_timing_frac": clock.cost_s / clock.gap / update_s,
    }
    interval = paired_interval(seconds["told"], seconds["silent"], 0.95)
    return {
        "update_ms": update_s * 1e3,
        "updates_per_turn": updates,
        "updates_between_samples": clock.gap,
        "parts": parts,
        "cost_frac": sum(parts.values()),
        "bound_frac": BOUND_FRAC,
        "within_bound": sum(parts.values()) <= BOUND_FRAC,
        "told_over_silent_frac": median(t / s for t, s in zip(seconds["told"], seconds["silent"], strict=True)) - 1,
        "told_over_silent_interval": [interval.low - 1, interval.high - 1],
        "seconds": seconds,
    }


def clock_idle_s(device: torch.device) -> float:
    """Return the time that a sampling clock adds to an update it does not time."""
    never = SampledClock(device, cost_s=1e9)
    _spin(never, 10)  # the first update is timed, and shows that timing is too expensive
    never.take_shares()
    return max(0.0, _spin(never, CLOCKED) - _spin(NoClock(), CLOCKED)) / CLOCKED


def _spin(clock: Clock, updates: int) -> float:
    started = perf_counter()
    for _ in range(updates):
        clock.start()
        for phase in PHASES:
            clock.lap(phase)
    return perf_counter() - started
