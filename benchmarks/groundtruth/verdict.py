"""Rules that judge a diagnosis, a location, a remedy and a gain against the known problem. Pure functions.

A row stores measurements as parts (`profile`, `tune`, `traceml`). Verdicts are recomputed from them whenever the result is
written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.groundtruth.traceml import judge_traceml
from benchmarks.groundtruth.truth import Case
from benchmarks.result_file import Row
from hasten.optimizations import catalogue
from hasten.script.plan.reach import why_beyond

NEAR_LINES = 2
"""Largest distance in lines between a right location and a marked line."""
BOUND_MARGIN = 0.25
GOALS: Mapping[str, float] = {
    "diagnosed_frac": 0.9,
    "clean_false_alarms": 0,
    "remedied_frac": 0.8,
    "within_bound_frac": 0.8,
    "own_cost_frac_2ms": 0.03,
    "own_cost_frac_100ms": 0.01,
}
"""Minimum for fractions of scripts; maximum for false alarms and overhead."""
AT_MOST = frozenset({"clean_false_alarms", "own_cost_frac_2ms", "own_cost_frac_100ms"})

_PLACE = re.compile(r"([^\s:]+\.py):(\d+)")


def profile_part(profile: Mapping[str, Any]) -> Row:
    """Return the part of a row for a profile."""
    found = profile["bottleneck"]
    return {
        "outcome": "profiled",
        "named": found["name"],
        "share": found["share"],
        "words": found["words"],
        "places": [f"{file}:{line}" for file, line in told_places(profile.get("where"))],
        "phases": dict(profile.get("phases", {})),
        "ceilings": dict(profile.get("ceilings", {})),
        "steps": profile.get("steps"),
        "step_ms": profile.get("step_ms"),
        "own_cost_frac": profile.get("own_cost_frac"),
    }


def tune_part(case: Case, evidence: Mapping[str, Any]) -> Row:
    """Return the part of a row for a tuning: candidates that were applied or are a remedy, and the proof of the plan."""
    final = evidence.get("final") or {}
    rungs = [
        {
            "name": rung["name"],
            "outcome": rung["outcome"],
            "reason": rung["reason"],
            "predicted_max_gain": rung["predicted_max_gain"],
            "ratio": (rung["comparison"] or {}).get("ratio"),
        }
        for rung in evidence["rungs"]
        if rung["outcome"] == "applied" or rung["name"] in case.remedy
    ]
    proof = {name: final.get(name) for name in ("ratio", "low", "high", "pairs")}
    return {"outcome": "tuned", "rungs": rungs, "final": proof}


def failed_part(why: str) -> Row:
    """Return the part of a row for a failed command."""
    return {"outcome": "failed", "why": why}


def judged(case: Case, row: Mapping[str, Any]) -> Row:
    """Return the row with the known problem, and its parts with their verdicts; unmeasured parts are None.

    For a profile: `diagnosed`, whether the bottleneck has a right name, and `located`, whether a location was named where
    the user should look (None for clean scripts, which have none). For a tuning: see `judge_tuning`.
    """
    profile, tune, traceml = (dict(row[part]) if row.get(part) else None for part in ("profile", "tune", "traceml"))
    if profile is not None:
        right = profile["outcome"] == "profiled" and profile["named"] in case.bottleneck
        near = located(case, profile.get("places"))
        profile |= {"diagnosed": right, "located": None if case.clean else near}
    if tune is not None:
        tune |= judge_tuning(case, tune)
    return {
        "name": case.name,
        "about": case.about,
        "clean": case.clean,
        "expected": [str(item) for item in case.bottleneck],
        "remedies": list(case.remedy),
        "skipped": "" if profile or tune else case.missing,  # another machine may have measured it
        "profile": profile,
        "tune": tune,
        "traceml": None if traceml is None else traceml | judge_traceml(case, traceml),
    }


def located(case: Case, where: Any) -> bool:
    """Return whether one of the named locations is at or next to a marked line of the script."""
    lines = [line for file, line in told_places(where) if Path(file).name == case.script.name]
    return any(abs(line - marked) <= NEAR_LINES for line in lines for marked in case.lines)


def told_places(where: Any) -> Iterator[tuple[str, int]]:
    """Yield files and lines from a profile's locations: `{"file", "line"}`, `"FILE.py:LINE ..."`, or nested lists."""
    if isinstance(where, str):
        yield from ((file, int(line)) for file, line in _PLACE.findall(where))
    elif isinstance(where, Mapping):
        if "file" in where and isinstance(where.get("line"), int):
            yield str(where["file"]), where["line"]
        yield from (place for value in where.values() for place in told_places(value) if not isinstance(value, int))
    elif isinstance(where, Sequence):
        yield from (place for value in where for place in told_places(value))


def judge_tuning(case: Case, tune: Mapping[str, Any]) -> Row:
    """Judge a tuning: whether a right remedy was applied, and whether its gain is within 25 % of the prediction.

    A failed tuning found no remedy. `advised` is a remedy that cannot be applied to a script and was described with the
    lines to write instead. The gain is compared with the predicted ceiling of that candidate; without an applied remedy or a
    prediction, `within_bound` is None.
    """
    if tune["outcome"] == "failed":
        return {"remedied": False, "advised": False, "remedied_why": tune["why"], "within_bound": None}
    rungs = [rung for rung in tune["rungs"] if rung["name"] in case.remedy]
    kept = [rung for rung in rungs if rung["outcome"] == "applied"]
    if not kept:
        words = "; ".join(f"{rung['name']}: {rung['reason']}" for rung in rungs) or "none of them was a candidate"
        advised = any(rung["reason"] and rung["reason"] == why_beyond(catalogue()[rung["name"]].card) for rung in rungs)
        return {"remedied": False, "advised": advised, "remedied_why": words, "within_bound": None}
    best = max(kept, key=lambda rung: rung["ratio"] or 0.0)
    gain, bound = best["ratio"], best["predicted_max_gain"]
    return {
        "remedied": True,
        "advised": False,
        "remedied_why": ", ".join(rung["name"] for rung in kept),
        "gain": gain,
        "bound": bound,
        "within_bound": abs(gain / bound - 1.0) <= BOUND_MARGIN if gain and bound else None,
    }


def score(rows: Sequence[Row]) -> Row:
    """Compute the score over all judged rows; unmeasured parts are not counted.

    A script whose profile failed counts as not diagnosed, and a clean one as no false alarm. A fraction is None if no row
    could be judged.
    """
    profiled = [row for row in rows if row["profile"]]
    injected = [row["profile"] for row in profiled if not row["clean"]]
    clean = [row["profile"] for row in profiled if row["clean"] and row["profile"]["outcome"] == "profiled"]
    tuned = [row["tune"] for row in rows if row["tune"]]
    return {
        "scripts": len(rows),
        "skipped": sum(bool(row["skipped"]) for row in rows),
        "injected": len(injected),
        "failed": sum(row["profile"]["outcome"] == "failed" for row in profiled),
        "diagnosed_frac": share([profile["diagnosed"] for profile in injected]),
        "located_frac": share([profile["located"] for profile in injected]),
        "clean": len(clean),
        "clean_false_alarms": sum(not profile["diagnosed"] for profile in clean) if clean else None,
        "tuned": len(tuned),
        "remedied_frac": share([tune["remedied"] for tune in tuned]),
        "remedied_or_advised_frac": share([tune["remedied"] or tune["advised"] for tune in tuned]),
        "within_bound_frac": share([tune["within_bound"] for tune in tuned if tune["within_bound"] is not None]),
    }


def reached(found: Mapping[str, Any]) -> dict[str, bool | None]:
    """Return which goals were reached; None if nothing was measured."""
    answers: dict[str, bool | None] = {}
    for name, goal in GOALS.items():
        value = found.get(name)
        answers[name] = None if value is None else value <= goal if name in AT_MOST else value >= goal
    return answers


def share(answers: Sequence[bool]) -> float | None:
    """Return the fraction of right answers; None if there are none."""
    return sum(answers) / len(answers) if answers else None
