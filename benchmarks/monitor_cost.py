"""Measure what monitoring costs: a job in Hasten's loop, and a loop of one's own, with windows and without.

The arms take turns in one process, so that drift of the machine affects both equally. A turn is long enough for several
windows, and begins when the monitor has started. Times are CPU seconds of the whole process, samplers and sinks included, so
that neighbours disturb less. Besides the ratio, whose interval is as wide as the machine is noisy, the parts are added up:
the time that the training thread spends in the monitor, and that of the samplers.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median
from time import perf_counter, process_time, sleep, thread_time
from typing import Any

from benchmarks.own_cost import JOBS, plain_loop
from benchmarks.record import ROOT, record
from hasten.core.stats import paired_interval
from hasten.core.target import load_job
from hasten.monitor.of_loop import follow_loop
from hasten.monitor.windows_file import read_windows, windows_path
from hasten.script.attach import attach
from hasten.train.build import build
from hasten.train.clock import SampledClock
from hasten.train.loop import Loop
from hasten.train.observer import no_one

TURN_S = 4.0
TURNS = 4
SETTLE_S = 0.5
"""Seconds until the monitor has created its samplers."""
BOUND_FRAC = 0.005


def run_monitor_cost(turns: int = TURNS) -> Path:
    """Measure both jobs in both hosts."""
    result: dict[str, Any] = {"bound_frac": BOUND_FRAC}
    for name, target in JOBS.items():
        job = str(ROOT / target)
        result[name] = {"job": measure_job(job, turns), "attached": measure_attached(job, turns)}
    return record("monitor_cost", result, f"python -m benchmarks monitor-cost --count {turns}")


def measure_job(target: str, turns: int) -> dict[str, Any]:
    """Train a job in turns with and without windows. Both arms have the sampled clock, as `hasten run` always has."""
    loop = Loop(build(load_job(target)))
    loop.clock = SampledClock(loop.live.device)
    updates = _updates(loop.run)
    spent: list[float] = []

    def arm(folder: Path, *, on: bool) -> float:
        observe = follow_loop(folder, say=_quiet) if on else no_one
        with observe(loop) as observer:

            def after_update() -> None:
                began = thread_time()
                observer.after_update()
                spent.append(thread_time() - began)

            sleep(SETTLE_S)
            spent.clear()
            began = process_time()
            loop.run(updates, on_update=after_update)
            return process_time() - began

    return _compared(arm, turns, updates, lambda: sum(spent))


def measure_attached(target: str, turns: int) -> dict[str, Any]:
    """Train a loop of one's own in turns inside `attach`, with and without windows."""
    plain = plain_loop(load_job(target))
    updates = _updates(plain)

    def arm(folder: Path, *, on: bool) -> float:
        with attach(out=folder if on else None):
            plain(2)  # the monitor starts with the first step
            sleep(SETTLE_S)
            began = process_time()
            plain(updates)
            return process_time() - began

    return _compared(arm, turns, updates, lambda: None)


def _updates(run: Callable[[int], None]) -> int:
    """Return the updates of a turn."""
    run(2)
    began = perf_counter()
    run(2)
    return max(int(TURN_S / ((perf_counter() - began) / 2)), 2)


def _compared(arm: Callable[..., float], turns: int, updates: int, thread_s: Callable[[], float | None]) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {"with": [], "without": []}
    thread: dict[str, list[float]] = {"with": [], "without": []}
    sampler_frac, windows = list[float](), 0
    for turn in range(turns):
        for name in ("with", "without") if turn % 2 else ("without", "with"):
            with tempfile.TemporaryDirectory() as folder:
                seconds[name].append(arm(Path(folder), on=name == "with"))
                if (own := thread_s()) is not None:
                    thread[name].append(own / seconds[name][-1])
                if name == "without":
                    continue
                read = read_windows(windows_path(Path(folder)))
                windows += len(read)
                sampler_frac.append(sum(w.values["monitor.cpu"] * w.seconds for w in read) / sum(w.seconds for w in read))
    interval = paired_interval(seconds["with"], seconds["without"], 0.95)
    parts = {"samplers_frac": fmean(sampler_frac)}
    if thread["with"]:  # less what reading the clock takes
        parts["training_thread_frac"] = max(fmean(thread["with"]) - fmean(thread["without"]), 0.0)
    return {
        "update_ms": median(seconds["without"]) / updates * 1e3,
        "updates_per_turn": updates,
        "windows": windows,
        "parts": parts,
        "cost_frac": sum(parts.values()),
        "within_bound": sum(parts.values()) <= BOUND_FRAC,
        "with_over_without_frac": median(a / b for a, b in zip(seconds["with"], seconds["without"], strict=True)) - 1,
        "with_over_without_interval": [interval.low - 1, interval.high - 1],
        "cpu_seconds": seconds,
    }


def _quiet(_message: str) -> None:
    return None


def table(found: dict[str, Any]) -> str:
    """Return the measured costs as a table."""
    lines = [
        "| | an update takes (CPU) | training thread | samplers (CPU) | CPU time with against without, 95 % interval |",
        "|---|---|---|---|---|",
    ]
    words = {"job": "`hasten run` of the {} job", "attached": "`attach` around the {} loop"}
    for name in JOBS:
        for host, text in words.items():
            part = found[name][host]
            thread = part["parts"].get("training_thread_frac")
            low, high = part["with_over_without_interval"]
            lines.append(
                f"| {text.format(name)} | {part['update_ms']:.2f} ms | {'' if thread is None else f'{thread:.3%}'} | "
                f"{part['parts']['samplers_frac']:.3%} | {low:+.1%} to {high:+.1%} |"
            )
    return "\n".join(lines)
