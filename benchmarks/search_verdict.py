"""Evaluate both searches: the fraction of the best throughput that the ladder reached, and in what fraction of the time."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hasten.core.stats import Interval, paired_interval

SHARE_GOAL = 0.95
"""Smallest fraction of the best subset's throughput that the ladder's plan must reach."""
TIME_GOAL = 0.2
"""Largest fraction of the exhaustive search's time that the ladder may take."""
NUM_BEST = 3
LADDER, RIVALS = "L", "123"
CONFIDENCE = 0.95
MIN_ROUNDS = 3

Row = Mapping[str, Any]


def latest(measured: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the last row of every subset: a repeated measurement replaces a disturbed one."""
    return list({json.dumps(row["plan"], sort_keys=True): row for row in measured}.values())


def best_plans(measured: Sequence[Row], climbed: Row) -> list[dict[str, Any]]:
    """Return the fastest subsets, without those containing a technique rejected by the numerics gate."""
    barred = [(rung["name"], rung["settings"]) for rung in climbed["rungs"] if rung["numerics"] == "failed"]
    allowed = [row for row in measured if row["ratio"] and not any(item in barred for item in row["plan"].items())]
    return [dict(row["plan"]) for row in sorted(allowed, key=lambda row: -row["ratio"])[:NUM_BEST]]


def arms_of(climbed: Row, measured: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """Return the plans to measure side by side, keyed by a letter: the best subsets, and the ladder's if it differs."""
    best = best_plans(measured, climbed)
    arms = dict(zip(RIVALS, best, strict=False))
    return arms if climbed["plan"] in best else {**arms, LADDER: dict(climbed["plan"])}


def summary(climbed: Row, measured: Sequence[Row], rounds: Sequence[Row], num_subsets: int) -> dict[str, Any]:
    """Return the result of a job.

    Args:
        climbed: The ladder's row.
        measured: The rows of the subsets.
        rounds: The rows of the side-by-side rounds.
        num_subsets: Number of subsets.
    """
    seconds = sum(row["seconds"] for row in measured)
    complete = len(measured) == num_subsets
    exhaustive_s = seconds if complete else seconds / max(len(measured), 1) * num_subsets
    clean = [row for row in rounds if row["plans"] == arms_of(climbed, measured) and not row["spoilt"]]
    best = _against(climbed, measured, clean)
    ratios = [row for row in best if row["ladder_over_it"] is not None]
    worst = min(ratios, key=lambda row: float(row["ladder_over_it"]), default=None)
    share = {"share": None, "low": None, "high": None}
    if worst is not None and len(ratios) == len(best):
        share = {"share": worst["ladder_over_it"], "low": worst["low"], "high": worst["high"]}
    found = {
        "candidates": climbed["space"],
        "max_subsets": climbed["max_subsets"],
        "subsets": num_subsets,
        "measured": len(measured),
        "failed": sum(row["ratio"] is None for row in measured),
        "complete": complete,
        "measured_seconds": seconds,
        "exhaustive_seconds": exhaustive_s,
        "ladder": {key: climbed.get(key) for key in ("seconds", "plan", "rungs", "floor_frac", "budget_s")},
        "time_frac": climbed["seconds"] / exhaustive_s if exhaustive_s else None,
        "best": best,
        "rounds": len(clean),
        "share_of_best": share,
        "goals": {"share": SHARE_GOAL, "time_frac": TIME_GOAL},
    }
    verdict, why = judge_search(share, found["time_frac"], complete=complete)
    return {**found, "verdict": verdict, "why": why}


def judge_search(share: Row, time_frac: float | None, *, complete: bool) -> tuple[str, str]:
    """Return `met`, `missed` or `undecided`, and why."""
    if share["share"] is None or time_frac is None:
        return "undecided", "too few clean rounds side by side"
    words = f"{share['share']:.1%} of the best throughput ({share['low']:.1%} to {share['high']:.1%})"
    words += f" in {time_frac:.1%} of the time"
    if share["high"] < SHARE_GOAL:
        return "missed", f"{words}; the goal is {SHARE_GOAL:.0%}"
    if time_frac > TIME_GOAL:
        return "missed", f"{words}; the goal is {TIME_GOAL:.0%} of the time"
    if not complete:
        return "undecided", f"{words} as projected; not every subset was measured"
    if share["low"] < SHARE_GOAL:
        return "undecided", f"{words}; the interval includes the goal of {SHARE_GOAL:.0%}"
    return "met", words


def _against(climbed: Row, measured: Sequence[Row], clean: Sequence[Row]) -> list[dict[str, Any]]:
    """For each of the best subsets: its screening, and the ladder's throughput relative to it, side by side."""
    screened = [(dict(row["plan"]), row["ratio"]) for row in measured]
    found = []
    for plan in best_plans(measured, climbed):
        ratio = next(seen for other, seen in screened if other == plan)
        interval = _interval(plan, climbed["plan"], clean)
        row: dict[str, Any] = {"plan": plan, "screened": ratio, "is_the_ladders": plan == climbed["plan"]}
        row |= {"ladder_over_it": interval.ratio if interval else None}
        row |= {"low": interval.low if interval else None, "high": interval.high if interval else None}
        found.append(row)
    return found


def _interval(plan: Mapping[str, Any], ladder: Mapping[str, Any], clean: Sequence[Row]) -> Interval | None:
    if plan == ladder:
        return Interval(1.0, 1.0, 1.0, len(clean), CONFIDENCE)
    if len(clean) < MIN_ROUNDS:
        return None
    times = {name: [_time(row, wanted) for row in clean] for name, wanted in (("it", plan), ("ladder", ladder))}
    return paired_interval(times["it"], times["ladder"], CONFIDENCE)


def _time(row: Row, plan: Mapping[str, Any]) -> float:
    arm = next(arm for arm, other in row["plans"].items() if other == plan)
    return float(row["seconds_per_item"][arm])
