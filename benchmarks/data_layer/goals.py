"""What the data layer was built to reach, and whether it did: by the interval of paired rounds, never by one number."""

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
    """One of ours against the fastest form of a rival.

    Attributes:
        words: What is asked.
        workload: Of both.
        ours: The system of ours.
        rivals: Forms of the rival; the fastest of those that were measured counts.
        at_least: So many times as fast.
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
        words="strings: 20x WebDataset", workload="text", ours="Hasten",
        rivals=("WebDataset", "WebDataset, 2 workers"), at_least=20,
    ),
    Goal(
        words="staying in Arrow, all samples mixed: 60 % of the speed of reading from the page cache",
        workload="text", ours="Hasten, Arrow, all mixed", rivals=(PAGE_CACHE,), at_least=0.6,
    ),
    Goal(
        words="tokens: 3x the best DataLoader, all samples mixed", workload="tokens",
        ours="Hasten, all mixed", rivals=_DATALOADERS, at_least=3,
    ),
    Goal(
        words="tokens: 10x LitData", workload="tokens", ours="Hasten", rivals=("LitData", "LitData, 2 workers"),
        at_least=10,
    ),
    Goal(
        words="JPEG: 2.5x a DataLoader of two workers with the same pixels", workload="jpeg", ours="Hasten",
        rivals=("DataLoader, 2 workers",), at_least=2.5,
    ),
    Goal(
        words="raw pictures: 2.5x a DataLoader of two workers with the same pixels", workload="raw", ours="Hasten",
        rivals=("DataLoader, 2 workers",), at_least=2.5,
    ),
    Goal(
        words="JPEG, converted once: 8x a DataLoader of two workers", workload="jpeg", ours="Hasten, converted",
        rivals=("DataLoader, 2 workers",), at_least=8,
    ),
)  # fmt: skip


def judged(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """All goals: what was seen, and `reached`, `missed`, `undecided` or `not measured`, with the reason."""
    named = {(row["workload"], row["system"]): row for row in rows}
    return [_ratio(goal, named) for goal in GOALS] + [_private(named), *_memory(named)]


def _ratio(goal: Goal, rows: Mapping[tuple[str, str], Row]) -> dict[str, Any]:
    told = {"goal": goal.words, "workload": goal.workload, "at_least": goal.at_least}
    ours = rows.get((goal.workload, goal.ours))
    there = [name for name in goal.rivals if (goal.workload, name) in rows]
    if ours is None or not there:
        return {**told, "verdict": "not measured", "why": "one of the two was not measured"}
    taken = {name: seconds(rows[goal.workload, name], ours) for name in there}
    rival = min(there, key=lambda name: median(taken[name]))
    if not rows[goal.workload, rival].get("same", True):
        return {**told, "verdict": "not measured", "why": f"{rival} gives other samples"}
    interval = paired_interval(taken[rival], seconds(ours), CONFIDENCE)
    seen = {"ratio": interval.ratio, "low": interval.low, "high": interval.high, "pairs": interval.pairs, "rival": rival}
    words = f"{interval.low:.2f} to {interval.high:.2f} times {rival}"
    if interval.low >= goal.at_least:
        return {**told, **seen, "verdict": "reached", "why": words}
    if interval.high < goal.at_least:
        return {**told, **seen, "verdict": "missed", "why": words}
    return {**told, **seen, "verdict": "undecided", "why": f"{words}: the interval holds the goal"}


def seconds(row: Row, ours: Row | None = None) -> list[float]:
    """Seconds of a sample in each round; of the page cache, seconds for the bytes of a sample of `ours`."""
    if row["system"] == PAGE_CACHE and ours is not None:
        size = ours["measured"]["same"]["num_bytes"] / ours["measured"]["same"]["count"]
        return [one["seconds_per_byte"] * size for one in row["measured"]["warm"]]
    return [one["seconds_per_sample"] for one in row["measured"]["warm"]]


def _private(rows: Mapping[tuple[str, str], Row]) -> dict[str, Any]:
    """Whether strings of ours take less private memory than those of any rival, each at its worst and its best."""
    told = {"goal": "strings: less private memory than any rival", "workload": "text"}
    rivals = {
        name: min(one["private_bytes"] for one in row["measured"]["memory"])
        for (workload, name), row in rows.items()
        if workload == "text" and row.get("against") and not row.get("reference") and "Arrow" not in name
    }
    ours = rows.get(("text", "Hasten"))
    if ours is None or not rivals:
        return {**told, "verdict": "not measured", "why": "one of the two was not measured"}
    least = min(rivals, key=lambda name: rivals[name])
    mine = max(one["private_bytes"] for one in ours["measured"]["memory"])
    why = f"{mine / 2**20:.0f} MiB beside {rivals[least] / 2**20:.0f} MiB of {least}, the rival that takes least"
    return {**told, "verdict": "reached" if mine < rivals[least] else "missed", "why": why}


def _memory(rows: Mapping[tuple[str, str], Row]) -> list[dict[str, Any]]:
    found = []
    for (workload, name), row in rows.items():
        if workload == "memory":
            measured = row["measured"]
            peak = measured["peak_private_bytes"]
            limit = f"{measured['limit_bytes'] / 2**20:,.0f} MiB"
            why = f"{peak / 2**20:,.0f} MiB at most" if peak is not None else f"ended when it held more than {limit}"
            verdict = "reached" if measured["within_limit"] else "missed"
            words = f"{name} within {limit} of private memory"
            found.append({"goal": words, "workload": workload, "verdict": verdict, "why": why})
    return found or [{"goal": "memory", "workload": "memory", "verdict": "not measured", "why": "it was left out"}]
