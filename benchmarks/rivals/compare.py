"""Run rounds of fresh processes: all arms alive and taking turns, idle ones suspended; ratios to the naive arm per round."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.record import RESULTS, ROOT, record
from benchmarks.tuning import EXAMPLES
from hasten.core.errors import JobError
from hasten.core.optimization import joined_environment, required_environment
from hasten.core.plan import Plan
from hasten.core.stats import paired_interval
from hasten.core.target import load_job
from hasten.optimizations import catalogue

ROUNDS, TURNS, TURN_S, WARM_S = 5, 4, 1.0, 2.0


@dataclass
class Rival:
    """A running arm."""

    name: str
    process: subprocess.Popen[bytes]

    def train(self, seconds: float) -> dict[str, float]:
        """Resume the arm, let it train for about this time, and suspend it again."""
        self.process.send_signal(signal.SIGCONT)
        if self.process.stdin is None or self.process.stdout is None:
            raise JobError(f"{self.name} has no pipes.")
        self.process.stdin.write(f"{seconds}\n".encode())
        self.process.stdin.flush()
        return self.answer()

    def answer(self) -> dict[str, float]:
        """Wait for its answer, then suspend it."""
        line = self.process.stdout.readline() if self.process.stdout else b""
        if not line:
            raise JobError(f"The arm {self.name!r} ended with exit code {self.process.wait()}: see its output above.")
        self.process.send_signal(signal.SIGSTOP)
        answer: dict[str, float] = json.loads(line)
        return answer

    def end(self) -> None:
        """Kill the process and wait for it."""
        self.process.kill()
        self.process.wait()


def run_rivals(name: str, rounds: int = ROUNDS) -> Path:
    """Measure all arms of an example, with the plan of its recorded tuning."""
    target = f"{ROOT / EXAMPLES[name]}"
    recorded = json.loads((RESULTS / f"tune_{name}.json").read_text(encoding="utf-8"))
    plan = Plan.from_toml(recorded["evidence"]["plan_toml"], catalogue()).to_dict()
    return record(f"rivals_{name}", side_by_side(target, plan, rounds=rounds), f"python -m benchmarks rivals-{name}")


def side_by_side(target: str, plan: dict[str, Any], only: Sequence[str] = (), rounds: int = ROUNDS) -> dict[str, Any]:
    """Measure the arms of a job in turns.

    Args:
        target: The job.
        plan: The plan of Hasten's arm.
        only: Names of arms, including the naive one and Hasten; defaults to all.
        rounds: Number of rounds with fresh processes.

    Returns:
        For each arm its ratio to the naive arm and Hasten's ratio to it, with intervals and raw seconds; the best rival; and
        the raw rows.
    """
    names = list(only) or _names(target)
    order = random.Random(f"rivals-{Path(target).stem}")
    rows: list[dict[str, Any]] = []
    for number in range(rounds):
        rows.append(_round(target, names, plan, number, order))
        print(f"round {number + 1}: {_brief(rows[-1])}", flush=True)
    per_sample = {arm: [row[arm]["seconds"] / row[arm]["samples"] for row in rows] for arm in names}
    result: dict[str, dict[str, Any]] = {}
    for arm in names:
        against = paired_interval(per_sample["naive"], per_sample[arm], 0.95)
        ours = paired_interval(per_sample[arm], per_sample["Hasten"], 0.95)
        result[arm] = {
            "ratio": against.ratio, "low": against.low, "high": against.high,
            "hasten_over_it": ours.ratio, "hasten_over_it_low": ours.low, "hasten_over_it_high": ours.high,
            "seconds_per_sample": per_sample[arm],
        }  # fmt: skip
    best = max((arm for arm in names if arm not in ("naive", "Hasten")), key=lambda arm: result[arm]["ratio"])
    head = {"plan": plan, "best_rival": best, "hasten_is_better": result[best]["hasten_over_it_low"] > 1.0}
    return {**head, "arms": result, "rows": rows}


def _names(target: str) -> list[str]:
    from benchmarks.rivals.arms import arms  # noqa: PLC0415  torch is slow to load where only --help is wanted

    return list(arms(load_job(target), {}))


def _round(target: str, names: list[str], plan: dict[str, Any], seed: int, order: random.Random) -> dict[str, Any]:
    """Start the arms one after another, warm each up, then give turns in random order."""
    totals: dict[str, dict[str, float]] = {name: {"seconds": 0.0, "samples": 0, "updates": 0} for name in names}
    with ExitStack() as stack:
        rivals = {name: stack.enter_context(_started(target, name, plan, seed)) for name in names}
        for _ in range(TURNS):
            for name in order.sample(names, len(names)):
                for key, value in rivals[name].train(TURN_S).items():
                    totals[name][key] += value
    return totals


class _Started(ExitStack):
    """A started and warmed-up arm that ends with the block."""

    def __init__(self, rival: Rival) -> None:
        super().__init__()
        self.rival = rival
        self.callback(rival.end)

    def __enter__(self) -> Rival:  # type: ignore[override]
        return self.rival


def _started(target: str, name: str, plan: dict[str, Any], seed: int) -> _Started:
    command = [sys.executable, "-m", "benchmarks.rivals.worker", target, name, str(seed), json.dumps(plan)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    if name == "Hasten":  # part of a plan may only work in a process started for it, as by `hasten run`
        wanted = required_environment(Plan.from_dict(plan, catalogue()).optimizations)
        environment = joined_environment(wanted, environment)
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    started = _Started(Rival(name, process))
    try:
        started.rival.answer()
        started.rival.train(WARM_S)
    except BaseException:
        started.close()
        raise
    return started


def _brief(row: dict[str, Any]) -> str:
    speed = {name: part["samples"] / part["seconds"] for name, part in row.items()}
    return ", ".join(f"{name} {value / speed['naive']:.2f}x" for name, value in speed.items())
