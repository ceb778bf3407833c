"""Measure several ways to do the same in turns, so that drift of the machine affects all of them equally."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any


def in_turns(ways: Mapping[str, Callable[[], object]], count: int) -> dict[str, list[float]]:
    """Return the seconds of each way, measured once a round in random order, after one round that is dropped."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(count + 1):
        for name in random.sample(list(ways), len(ways)):
            begun = perf_counter()
            ways[name]()
            seconds[name].append(perf_counter() - begun)
    return {name: values[1:] for name, values in seconds.items()}


def times(theirs: Sequence[float], ours: Sequence[float]) -> float:
    """Return how many times as long one way takes as another: the median over the rounds."""
    return round(median(a / b for a, b in zip(theirs, ours, strict=True)), 2)


def goal(least: float, seen: float) -> dict[str, Any]:
    """Return a goal that is reached from a figure on."""
    return {"goal": least, "seen": round(seen, 4), "reached": seen >= least}


def most_memory() -> int:
    """Return the most memory that this process has had, in bytes. Unlike `ru_maxrss`, it is not inherited."""
    return memory("VmHWM")


def memory(name: str) -> int:
    """Return a figure of this process in bytes, such as `VmRSS`, or `RssAnon` without pages of files."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
