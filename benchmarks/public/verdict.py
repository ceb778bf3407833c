"""What is recorded of a tuning, and how the scripts are counted. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hasten.report import parse
from hasten.report.words import headline

GOALS: Mapping[str, float] = {"scripts": 5, "faster": 3, "ratio": 1.3}
"""Numbers of scripts to profile, to tune and to speed up, and the required ratio at the interval's lower end."""

Row = dict[str, Any]


def judge_tuning(evidence: Mapping[str, Any]) -> Row:
    """Return the proved result of a tuning: ratio and interval, plan, and whether the losses passed the gates.

    `ratio` is None if nothing was proved; `words` describes the outcome. The complete evidence is recorded with it.
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
    """Return the result of a part; None if it failed or was not run."""
    kept: Row | None = (row.get(part) or {}).get("found")
    return kept


def is_faster(row: Row) -> bool:
    """Return whether a script was proved to reach the goal's speedup, with its losses within the gate."""
    tuned = found(row, "tune")
    return tuned is not None and tuned["within_gate"] and (tuned["low"] or 0.0) >= GOALS["ratio"]


def score(rows: Sequence[Row]) -> Row:
    """Count the scripts that were profiled, tuned, and became faster, and judge the goals."""
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
