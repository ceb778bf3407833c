"""Measure a training that counts the mentions of groups in its batches: beside it by `BiasMonitor`, and inline, in turns.

One loop trains `DrawnCounsel`, and each turn starts it again from its first batch. After each update the texts of the batch
are

without             not looked at
monitor             put to the monitor, whose worker process counts them
inline              counted by the scanner in the training process
inline, loop of re  counted by one pattern of Python's `re` after another

`call_s` is the time of that, for each batch, in the training thread. What waits when a turn of the monitor ends is counted
before the next turn begins; `drain_s` is the time that it takes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from benchmarks.dialogue.scan import loop as loop_of_re
from benchmarks.turns import goal, times
from hasten.core.stats import paired_interval
from hasten.recipes.dialogue.bias.monitor import BiasMonitor
from hasten.recipes.dialogue.bias.patterns import load_patterns
from hasten.recipes.dialogue.bias.scan import Counts, Scanner
from hasten.recipes.dialogue.demo import DrawnCounsel
from hasten.recipes.dialogue.prepare import TEXT, TRAIN
from hasten.recipes.dialogue.stages import open_stages
from hasten.train.build import build
from hasten.train.loop import Loop

TURN_S, TURNS = 2.0, 64
EVERY = 4
"""The arms whose difference is large take part in one turn of so many."""
MOST_COST, LATENCY_SAVED, THROUGHPUT = 0.02, 0.8, 0.3
"""Largest cost against training without, at the upper end of the interval; smallest gains against a loop of `re`."""


def run(_found: Mapping[str, Any], turn_s: float = TURN_S, turns: int = TURNS) -> dict[str, Any]:
    """Measure all arms.

    Args:
        turn_s: Seconds of a turn without counting.
        turns: Turns of the arms without counting and with the monitor.
    """
    job = DrawnCounsel()
    training = Loop(build(job))
    batches = batch_texts(job)
    updates = min(_updates(training, turn_s), len(batches))
    scanner, slow = Scanner(), loop_of_re(load_patterns())
    seconds: dict[str, list[float]] = {}
    calls: dict[str, list[float]] = {}
    drained: list[float] = []
    lags: list[float] = []
    with TemporaryDirectory() as folder:
        monitor = BiasMonitor(Path(folder))
        monitor.put(batches[0])  # its worker process starts
        monitor.drain()
        arms: dict[str, Callable[[Sequence[str]], object]] = {
            "without": lambda _texts: None,
            "monitor": monitor.put,
            "inline": scanner.count,
            "inline, loop of re": slow,
        }
        for turn in range(turns + 1):
            taking = list(arms) if turn % EVERY == 0 else ["without", "monitor"]
            for name in random.sample(taking, len(taking)):
                spent, called = _turn(training, batches, updates, arms[name])
                began = perf_counter()
                report = monitor.drain()
                if not turn:
                    continue
                seconds.setdefault(name, []).append(spent)
                calls.setdefault(name, []).append(fmean(called))
                if name == "monitor":
                    drained.append(perf_counter() - began)
                    lags.append(report.lag_s)
        report = monitor.close()
    _check(report.counts, scanner, batches, updates, turns + 1)
    beside = {name: values[EVERY - 1 :: EVERY] if len(values) == turns else values for name, values in seconds.items()}
    cost = paired_interval(seconds["monitor"], seconds["without"], 0.95)
    latency = {name: median(calls[name]) for name in calls if name != "without"}
    saved = 1 - latency["monitor"] / latency["inline, loop of re"]
    return {
        "updates_per_turn": updates,
        "update_s": median(seconds["without"]) / updates,
        "bytes_per_batch": fmean(sum(len(text.encode()) for text in texts) for texts in batches[:updates]),
        "over_without": {name: times(values, beside["without"]) for name, values in beside.items()},
        "monitor_over_without": {"ratio": cost.ratio, "low": cost.low, "high": cost.high},
        "latency_s": latency,
        "num_counted": report.num_counted,
        "lost": report.lost,
        "lag_s": {"median at the end of a turn": median(lags), "most": report.max_lag_s},
        "drain_s": {"median": median(drained), "most": max(drained)},
        "call_s": calls,
        "seconds": seconds,
        "goals": {
            "time over training without, upper end": {
                "goal": 1 + MOST_COST, "seen": round(cost.high, 4), "reached": cost.high <= 1 + MOST_COST
            },
            "batches lost": {"goal": 0, "seen": report.lost, "reached": not report.lost},
            "latency saved, against inline by re": goal(LATENCY_SAVED, saved),
            "throughput gained, against inline by re": goal(
                THROUGHPUT, times(beside["inline, loop of re"], beside["monitor"]) - 1
            ),
        },
    }  # fmt: skip


def batch_texts(job: DrawnCounsel) -> list[list[str]]:
    """Return the texts of the conversations in each batch of an epoch."""
    data = job.train_rows
    texts: dict[str, list[str]] = {}
    for store in open_stages(job.folder / TEXT).values():
        columns = store.take(range(len(store)), ["conversation_id", "contents"])
        texts.update(zip(columns["conversation_id"].to_pylist(), columns["contents"].to_pylist(), strict=True))
    names = [
        store.take(range(len(store)), ["conversation_id"])["conversation_id"].to_pylist()
        for store in open_stages(job.folder / TRAIN).values()
    ]
    rows = [
        ["\n".join(texts[names[stage][number]]) for stage, number, *_ in data.pieces(row).tolist()]
        for row in range(len(data))
    ]
    size = job.batch_size
    return [[text for row in rows[start : start + size] for text in row] for start in range(0, len(rows), size)]


def _updates(training: Loop, turn_s: float) -> int:
    """Return the updates of a turn, from the fastest of some short runs."""
    training.run(5)
    taken = []
    for _ in range(3):
        began = perf_counter()
        training.run(5)
        taken.append((perf_counter() - began) / 5)
    return max(int(turn_s / min(taken)), 2)


def _turn(
    training: Loop, batches: Sequence[Sequence[str]], updates: int, count: Callable[[Sequence[str]], object]
) -> tuple[float, list[float]]:
    training.rewind()
    called: list[float] = []

    def after_update() -> None:
        began = perf_counter()
        count(batches[len(called)])
        called.append(perf_counter() - began)

    began = perf_counter()
    training.run(updates, on_update=after_update)
    return perf_counter() - began, called


def _check(counts: Counts | None, scanner: Scanner, batches: Sequence[Sequence[str]], updates: int, turns: int) -> None:
    expected = scanner.count(batches[0])
    for _ in range(turns):
        for texts in batches[:updates]:
            expected += scanner.count(texts)
    if counts != expected:
        raise AssertionError("the monitor counted otherwise")
