"""Measure Hasten's own overhead: the loop with its phase clock against the loop without, and a plain PyTorch loop.

The arms are interleaved in one process in short turns, so that drift of the machine affects all of them equally. Ratios are
computed for each turn.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

from benchmarks.record import ROOT, record
from hasten.core.job import Job, Loss
from hasten.core.seeding import epoch_permutation
from hasten.core.stats import paired_interval
from hasten.core.target import load_job
from hasten.train.build import build
from hasten.train.clock import NoClock, PhaseClock
from hasten.train.loop import Loop

JOBS = {"text": "examples/text.py:TextJob", "tiny": "examples/diagnosis/tiny.py:TinyJob"}
BOUNDS = {"text": 0.01, "tiny": 0.05}
TURN_S = 0.1
TURNS = 201


def run_own_cost(turns: int = TURNS) -> Path:
    """Measure both jobs."""
    result = {name: _measure(load_job(str(ROOT / target)), turns, BOUNDS[name]) for name, target in JOBS.items()}
    return record("own_cost", result, f"python -m benchmarks own-cost --count {turns}")


def _measure(job: Job, turns: int, bound: float) -> dict[str, Any]:
    loop = Loop(build(job))
    loop.run(2)
    started = perf_counter()
    loop.run(2)
    updates = max(int(TURN_S / ((perf_counter() - started) / 2)), 1)
    plain = plain_loop(job)

    def ours(*, watched: bool) -> None:
        loop.clock = PhaseClock() if watched else NoClock()
        loop.run(updates)

    arms: dict[str, Callable[[], None]] = {
        "watched": lambda: ours(watched=True),
        "unwatched": lambda: ours(watched=False),
        "plain": lambda: plain(updates),
    }
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for turn in range(turns):
        names = list(arms)
        for name in names if turn % 2 else reversed(names):
            started = perf_counter()
            arms[name]()
            seconds[name].append(perf_counter() - started)
    against_unwatched = [w / u - 1 for w, u in zip(seconds["watched"], seconds["unwatched"], strict=True)]
    against_plain = [w / p - 1 for w, p in zip(seconds["watched"], seconds["plain"], strict=True)]
    cost = median(against_unwatched)
    interval = paired_interval(seconds["watched"], seconds["unwatched"], 0.95)
    return {
        "update_ms": median(seconds["unwatched"]) / updates * 1e3,
        "updates_per_turn": updates,
        "profiling_cost_frac": cost,
        "profiling_cost_interval": [interval.low - 1, interval.high - 1],
        "loop_over_plain_frac": median(against_plain),
        "bound_frac": bound,
        "within_bound": cost <= bound,
        "seconds": seconds,
    }


def plain_loop(job: Job) -> Callable[[int], None]:
    """Return the loop a user would write by hand, without Hasten's handling of random numbers."""
    data: Any = job.train_data()
    model = job.model()
    optimizer = job.optimizer(model)
    schedule = job.schedule(optimizer, 10_000)

    def run(updates: int) -> None:
        order = epoch_permutation(len(data), 0, 0)
        for update in range(updates):
            at = update * job.batch_size % max(len(order) - job.batch_size, 1)
            samples = [job.deterministic_transform(data[index]) for index in order[at : at + job.batch_size]]
            loss = job.loss(model, job.collate([job.random_transform(sample) for sample in samples]))
            mean = loss.total / loss.weight if isinstance(loss, Loss) else loss
            mean.backward()
            if job.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), job.clip_norm)
            optimizer.step()
            optimizer.zero_grad(set_to_none=job.zero_grad_to_none)
            if schedule is not None:
                schedule.step()
            if update % job.read_every == 0:
                mean.item()

    return run
