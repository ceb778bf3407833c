"""The goals of the data layer, and whether they were reached, judged by the interval of paired rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from hasten.core.stats import paired_interval

CONFIDENCE = 0.95
PAGE_CACHE = "page cache"
Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Goal:
    """One Hasten system against the fastest variant of a rival.

    Attributes:
        words: The goal in words.
        workload: Workload of both.
        ours: The Hasten system.
        rivals: Variants of the rival; the fastest measured one counts.
        at_least: Required ratio of speeds.
    """

    words: str
    workload: str
    ours: str
    rivals: tuple[str, ...]
    at_least: float


_DATALOADERS = (
    "DataLoader",
    "DataLoader, 2 workers",
    "DataLoader, listed __getitems__",
    "DataLoader, __getitems__",
    "DataLoader, __getitems__ by torch",
    "DataLoader, __getitems__, 2 workers",
)
GOALS: tuple[Goal, ...] = (
    Goal(
        words="strings: 3x Hugging Face, map-style, all samples mixed", workload="text", ours="Hasten, all mixed",
        rivals=("Hugging Face", "Hugging Face, DataLoader"), at_least=3,
    ),
    Goal(
        words="strings: 5x LitData", workload="text", ours="Hasten", rivals=("LitData", "LitData, 2 workers"), at_least=5,
    ),
    Goal(
        words="tokens: as fast as the best DataLoader, all samples mixed", workload="tokens",
        ours="Hasten, all mixed", rivals=_DATALOADERS, at_least=1,
    ),
    Goal(
        words="tokens: 5x LitData", workload="tokens", ours="Hasten", rivals=("LitData", "LitData, 2 workers"), at_least=5,
    ),
    Goal(
        words="JPEG: 1.5x a DataLoader of two workers with the same pixels", workload="jpeg", ours="Hasten",
        rivals=("DataLoader, 2 workers",), at_least=1.5,
    ),
)  # fmt: skip
MOST_PRIVATE_BYTES = 64 * 2**20
"""Limit of private memory for an epoch of text or tokens."""


def judged(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Judge all goals: the measurement, and `reached`, `missed`, `undecided` or `not measured`, with the reason."""
    named = {(row["workload"], row["system"]): row for row in rows}
    return [_ratio(goal, named) for goal in GOALS] + [_private(named), *_memory(named)]


def _ratio(goal: Goal, rows: Mapping[tuple[str, str], Row]) -> dict[str, Any]:
    told = {"goal": goal.words, "workload": goal.workload, "at_least": goal.at_least}
    ours = rows.get((goal.workload, goal.ours))
    there = [name for name in goal.rivals if (goal.workload, name) in rows]
    if ours is None or not there:
        return {**told, "verdict": "not measured", "why": "one of the two was not measured"}
    taken = {name: seconds(rows[goal.workload, name]) for name in there}
    rival = min(there, key=lambda name: median(taken[name]))
    if not rows[goal.workload, rival].get("same", True):
        return {**told, "verdict": "not measured", "why": f"{rival} returns different samples"}
    interval = paired_interval(taken[rival], seconds(ours), CONFIDENCE)
    seen = {"ratio": interval.ratio, "low": interval.low, "high": interval.high, "pairs": interval.pairs, "rival": rival}
    words = f"{interval.low:.2f} to {interval.high:.2f} times {rival}"
    if interval.low >= goal.at_least:
        return {**told, **seen, "verdict": "reached", "why": words}
    if interval.high < goal.at_least:
        return {**told, **seen, "verdict": "missed", "why": words}
    return {**told, **seen, "verdict": "undecided", "why": f"{words}; the interval includes the goal"}


def seconds(row: Row) -> list[float]:
    """Return the seconds per sample in each round."""
    return [one["seconds_per_sample"] for one in row["measured"]["warm"]]


def _private(rows: Mapping[tuple[str, str], Row]) -> dict[str, Any]:
    """Judge whether every Hasten system stays within its limit of private memory on text and tokens."""
    limit = f"{MOST_PRIVATE_BYTES / 2**20:.0f} MiB"
    told = {"goal": f"text and tokens: within {limit} of private memory", "workload": "text"}
    ours = {
        f"{workload}: {name}": max(one["private_bytes"] for one in row["measured"]["memory"])
        for (workload, name), row in rows.items()
        if workload in {"text", "tokens"} and name.startswith("Hasten")
    }
    if not ours:
        return {**told, "verdict": "not measured", "why": "no Hasten system was measured"}
    worst = max(ours, key=lambda name: ours[name])
    why = f"at most {ours[worst] / 2**20:.0f} MiB ({worst})"
    return {**told, "verdict": "reached" if ours[worst] < MOST_PRIVATE_BYTES else "missed", "why": why}


def _memory(rows: Mapping[tuple[str, str], Row]) -> list[dict[str, Any]]:
    found = []
    for (workload, name), row in rows.items():
        if workload == "memory":
            measured = row["measured"]
            peak = measured["peak_private_bytes"]
            limit = f"{measured['limit_bytes'] / 2**20:,.0f} MiB"
            why = f"at most {peak / 2**20:,.0f} MiB" if peak is not None else f"ended when it used more than {limit}"
            verdict = "reached" if measured["within_limit"] else "missed"
            words = f"{name} within {limit} of private memory"
            found.append({"goal": words, "workload": workload, "verdict": verdict, "why": why})
    return found or [{"goal": "memory", "workload": "memory", "verdict": "not measured", "why": "it was excluded"}]
