"""Measure the gain of a second process on this machine: two ranks with one core each, against one process.

The single process uses one core or both. Each measurement is a group of fresh processes that trains the same optimizer
batches; arms take turns. On one machine the second rank adds no core: it saves what threads lose at their barriers, and
costs the sum of the gradients.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

from benchmarks.record import ROOT, record
from hasten.core.plan import Plan
from hasten.core.stats import paired_interval
from hasten.core.target import load_job
from hasten.optimizations import catalogue
from hasten.train.build import build
from hasten.train.launch import launch
from hasten.train.loop import Loop
from hasten.train.process_group import is_member, join_group, leave_group, stay_with_launcher

ABORTED = 128 + signal.SIGABRT
ROUNDS = 5
JOBS = {"text": ("examples/text.py:TextJob", 12), "image": ("examples/image.py:DigitsJob", 40)}
"""Target and number of counted updates."""
WARM_UPDATES = 4


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A way to use two cores.

    Attributes:
        ranks: Number of processes.
        threads: Threads of each process.
        plan: The plan in the form of `hasten.toml`.
    """

    ranks: int = 1
    threads: int = 1
    plan: Mapping[str, Any] = field(default_factory=dict)


ARMS = {
    "one process, one thread": Arm(),
    "one process, two threads": Arm(threads=2),
    "two ranks": Arm(ranks=2),
    "two ranks, DDP": Arm(ranks=2, plan={"gradient_buckets": {}}),
    "two ranks, FSDP2": Arm(ranks=2, plan={"sharding": {}}),
}


def run_scaling(rounds: int = ROUNDS) -> Path:
    """Measure all arms on both example jobs."""
    jobs = {}
    for name in JOBS:
        seconds: dict[str, list[float]] = {arm: [] for arm in ARMS}
        for turn in range(rounds):
            names = list(ARMS)
            for arm in names[turn % len(names) :] + names[: turn % len(names)]:
                seconds[arm].append(measured(name, arm))
            print(f"{name}: round {turn + 1} of {rounds}", flush=True)
        jobs[name] = summary(seconds)
        print(f"{name}: {jobs[name]['words']}", flush=True)
    return record("scaling", {"jobs": jobs, "rounds": rounds}, f"python -m benchmarks scaling --count {rounds}")


def summary(seconds: Mapping[str, list[float]]) -> dict[str, Any]:
    """Return medians, and the ratio of each way with two ranks to the best way with one process."""
    alone = [name for name, arm in ARMS.items() if arm.ranks == 1]
    best = min(alone, key=lambda name: median(seconds[name]))
    arms: dict[str, Any] = {name: {"update_s": median(taken), "seconds": taken} for name, taken in seconds.items()}
    for name, taken in seconds.items():
        interval = paired_interval(seconds[best], taken, 0.95)
        arms[name] |= {"over_best_alone": interval.ratio, "low": interval.low, "high": interval.high}
    words = "; ".join(
        f"{name}: {arm['over_best_alone']:.2f}x ({arm['low']:.2f} to {arm['high']:.2f})"
        for name, arm in arms.items()
        if name not in alone
    )
    return {"best_alone": best, "arms": arms, "words": f"against {best}: {words}"}


def measured(job: str, arm: str) -> float:
    """Return the seconds per update of the slowest rank.

    Raises:
        RuntimeError: The group failed.
    """
    chosen = ARMS[arm]
    with tempfile.TemporaryDirectory(prefix="hasten-") as folder:
        path = Path(folder) / "found.json"
        os.chdir(ROOT)
        before = os.environ.get("OMP_NUM_THREADS")
        os.environ["OMP_NUM_THREADS"] = str(chosen.threads)
        try:
            status = launch(chosen.ranks, [sys.executable, "-m", "benchmarks.scaling", job, arm, str(path)])
        finally:
            if before is None:
                del os.environ["OMP_NUM_THREADS"]
            else:
                os.environ["OMP_NUM_THREADS"] = before
        # Torch may abort a rank at exit (PyTorch's gloo threads outlive the group); the time has already been written.
        if status and not (status == ABORTED and path.exists()):
            raise RuntimeError(f"{arm} on {job} ended with status {status}")
        return float(json.loads(path.read_text(encoding="utf-8")))


def worker(job: str, arm: str, path: Path) -> None:
    """Run one rank: train, and write the seconds per update."""
    chosen = ARMS[arm]
    stay_with_launcher(chosen.ranks)
    torch.set_num_threads(chosen.threads)
    if is_member():
        join_group()
    target, updates = JOBS[job]
    loop = Loop(build(load_job(target), Plan.from_dict(dict(chosen.plan), catalogue())), rewinds=False)
    loop.run(WARM_UPDATES)
    started = perf_counter()
    loop.run(updates)
    taken = loop.ranks.slowest([(perf_counter() - started) / updates])[0]
    if loop.ranks.rank == 0:
        path.write_text(json.dumps(taken), encoding="utf-8")
    loop.close()
    leave_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("job")
    parser.add_argument("arm")
    parser.add_argument("path", type=Path)
    given = parser.parse_args()
    worker(given.job, given.arm, given.path)
