"""What of a tuning is kept, and how the scripts are counted. Pure rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hasten.report import parse
from hasten.report.words import headline

GOALS: Mapping[str, float] = {"scripts": 5, "faster": 3, "ratio": 1.3}
"""At least so many scripts profiled and tuned, so many of them so many times as fast by the lower end of the interval."""

Row = dict[str, Any]


def judge_tuning(evidence: Mapping[str, Any]) -> Row:
    """What a tuning proved: ratio and interval, the plan, and whether the losses stayed within the gate of each technique.

    `ratio` is None where nothing was proved; `words` says what was found. The whole evidence is kept beside it.
    """
    final = evidence["final"] or {}
    applied = [rung for rung in evidence["rungs"] if rung["outcome"] == "applied"]
    gates = {rung["name"]: (rung["numerics"] or {}).get("verdict", "not judged") for rung in applied}
    quality = (final.get("quality") or {}).get("verdict")
    return {
        **{name: final.get(name) for name in ("ratio", "low", "high", "pairs", "verdict")},
        "words": headline(parse(evidence)).line,
        "plan": {rung["name"]: rung["settings"] for rung in applied},
        "gates": gates,
        "within_gate": all(verdict == "passed" for verdict in gates.values()) and quality != "worse",
        "evidence": evidence,
    }


def found(row: Row, part: str) -> Row | None:
    """What a part of a row found; None where it failed or was not run."""
    kept: Row | None = (row.get(part) or {}).get("found")
    return kept


def is_faster(row: Row) -> bool:
    """Whether a script was proved to be as much faster as the goal asks, with its losses within the gate."""
    tuned = found(row, "tune")
    return tuned is not None and tuned["within_gate"] and (tuned["low"] or 0.0) >= GOALS["ratio"]


def score(rows: Sequence[Row]) -> Row:
    """How many scripts were profiled, were tuned, and became faster, and whether the goals are reached."""
    both = sum(found(row, "profile") is not None and found(row, "tune") is not None for row in rows)
    faster = sum(is_faster(row) for row in rows)
    return {
        "scripts": len(rows),
        "profiled": sum(found(row, "profile") is not None for row in rows),
        "tuned": sum(found(row, "tune") is not None for row in rows),
        "faster": faster,
        "goals": dict(GOALS),
        "reached": both >= GOALS["scripts"] and faster >= GOALS["faster"],
    }
