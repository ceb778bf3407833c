"""`python -m benchmarks checkpoints`: every way to save, at two sizes, in rounds of one run."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from rich.progress import Progress

from benchmarks.checkpoints.ways import OURS, WAYS
from benchmarks.record import ROOT, record

SIZES_MB = (200, 1000)
ROUNDS = 4
SAVES = 3
"""Saves in each process; the first uses cold buffers and is reported separately."""
STALL_GOAL_S = 0.05
LOST_GOAL = 0.5
"""Largest accepted training time lost, as a fraction of the best rival's."""
_LIMIT_S = 300
_KEYS = ("stall_s", "dip_s", "lost_s", "durable_s", "update_s")


def run(sizes: tuple[int, ...] = SIZES_MB, rounds: int = ROUNDS) -> Path:
    """Run the measurement.

    Args:
        sizes: Sizes of the state in megabytes.
        rounds: Processes of each way and size, in turns.

    Raises:
        RuntimeError: A process failed.
    """
    found = {}
    for size in sizes:
        raw = _rounds(size, rounds)
        found[str(size)] = {"raw": raw, "ways": _summary(raw), **_verdict(raw, size)}
        for name, row in found[str(size)]["ways"].items():
            words = "  ".join(f"{key} {row[key]:.3f}" for key in _KEYS)
            print(f"{size} MB  {name:38s} {words}", flush=True)
        print(f"{size} MB  {found[str(size)]['words']}", flush=True)
    return record("checkpoints", {"sizes": found}, f"python -m benchmarks checkpoints --rounds {rounds}")


def _rounds(size: int, rounds: int) -> dict[str, list[list[dict[str, float]]]]:
    raw: dict[str, list[list[dict[str, float]]]] = {name: [] for name in WAYS}
    with Progress(disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task(f"{size} MB", total=rounds * len(WAYS))
        for turn in range(rounds):
            names = list(WAYS)
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                raw[name].append(measured(size, name))
                progress.advance(task)
    return raw


def measured(size: int, name: str) -> list[dict[str, float]]:
    """Return the saves of one process."""
    with tempfile.TemporaryDirectory(prefix="hasten-", dir=_disk()) as folder:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.checkpoints.worker", name, str(size), folder, str(SAVES)],
            cwd=ROOT, capture_output=True, text=True, timeout=_LIMIT_S, check=False,
        )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{name} at {size} MB ended with {done.returncode}: {done.stderr[-2000:]}")
    saves: list[dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return saves


def _disk() -> str | None:
    """Return HASTEN_DISK, a folder on a disk, if set: the usual folder for temporary files may be in memory."""
    return os.environ.get("HASTEN_DISK")


def _warm(saves: list[list[dict[str, float]]], key: str) -> list[float]:
    return [save[key] for process in saves for save in process[1:]]


def _summary(raw: dict[str, list[list[dict[str, float]]]]) -> dict[str, dict[str, Any]]:
    return {
        name: {
            **{key: median(_warm(saves, key)) for key in _KEYS},
            "lost_range_s": [min(_warm(saves, "lost_s")), max(_warm(saves, "lost_s"))],
            "first_lost_s": median(process[0]["lost_s"] for process in saves),
            "num_bytes": saves[0][-1]["num_bytes"],
        }
        for name, saves in raw.items()
    }


def _verdict(raw: dict[str, list[list[dict[str, float]]]], size: int) -> dict[str, Any]:
    """Compare Hasten with the best rival, round by round, and judge the goals."""
    lost = {name: [median(save["lost_s"] for save in process[1:]) for process in saves] for name, saves in raw.items()}
    best = min((name for name in lost if name != OURS), key=lambda name: median(lost[name]))
    ratios = [mine / other for mine, other in zip(lost[OURS], lost[best], strict=True)]
    stall = median(_warm(raw[OURS], "stall_s"))
    goals = {"lost at most half of the best other": median(ratios) <= LOST_GOAL}
    if size == SIZES_MB[0]:
        goals["stall below 50 ms"] = stall < STALL_GOAL_S
    words = (
        f"hasten loses {median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f}) of the time {best} loses; goals: "
        + ", ".join(f"{name}: {'reached' if reached else 'NOT reached'}" for name, reached in goals.items())
    )
    return {"best_other": best, "lost_ratio": median(ratios), "lost_ratios": ratios, "goals": goals, "words": words}


def main(arguments: list[str]) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks checkpoints", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES_MB, help="sizes of the state in megabytes")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args(arguments)
    print(f"wrote {run(tuple(given.sizes), given.rounds)}", flush=True)
