"""What counts as right: a diagnosis, a place, a remedy and a realised gain against the truth. Pure rules."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.groundtruth.truth import Case

NEAR_LINES = 2
"""A place is right up to so many lines beside a marked one."""
BOUND_MARGIN = 0.25
GOALS: Mapping[str, float] = {
    "diagnosed_frac": 0.9,
    "clean_false_alarms": 0,
    "remedied_frac": 0.8,
    "within_bound_frac": 0.8,
    "own_cost_frac_2ms": 0.03,
    "own_cost_frac_100ms": 0.01,
}
"""At least, for shares of scripts; at most, for false alarms and costs."""

Row = dict[str, Any]

_PLACE = re.compile(r"([^\s:]+\.py):(\d+)")


def judge_profile(case: Case, profile: Mapping[str, Any]) -> Row:
    """Hold a profile against the truth.

    `diagnosed` is whether the bottleneck has a right name, `located` whether a place was named where the user should look
    (None for clean scripts, where there is none to name).
    """
    found = profile["bottleneck"]
    places = [f"{file}:{line}" for file, line in told_places(profile.get("where"))]
    return {
        **about(case),
        "outcome": "profiled",
        "named": found["name"],
        "share": found["share"],
        "words": found["words"],
        "places": places,
        "ceilings": dict(profile.get("ceilings", {})),
        "diagnosed": found["name"] in case.bottleneck,
        "located": None if case.clean else located(case, profile.get("where")),
    }


def about(case: Case) -> Row:
    """The truth about a script, as every row begins."""
    return {
        "name": case.name,
        "about": case.about,
        "clean": case.clean,
        "expected": [str(item) for item in case.bottleneck],
        "remedies": list(case.remedy),
    }


def located(case: Case, where: Any) -> bool:
    """Whether one of the named places is a marked line of the script, or next to one."""
    lines = [line for file, line in told_places(where) if Path(file).name == case.script.name]
    return any(abs(line - marked) <= NEAR_LINES for line in lines for marked in case.lines)


def told_places(where: Any) -> Iterator[tuple[str, int]]:
    """Files and lines in what a profile says of places: `{"file", "line"}`, `"FILE.py:LINE ..."`, or any nest of these."""
    if isinstance(where, str):
        yield from ((file, int(line)) for file, line in _PLACE.findall(where))
    elif isinstance(where, Mapping):
        if "file" in where and isinstance(where.get("line"), int):
            yield str(where["file"]), where["line"]
        yield from (place for value in where.values() for place in told_places(value) if not isinstance(value, int))
    elif isinstance(where, Sequence):
        yield from (place for value in where for place in told_places(value))


def judge_tuning(case: Case, evidence: Mapping[str, Any]) -> Row:
    """Hold a tuning against the truth: was a right remedy kept, and was its gain the predicted one within 25 %?

    `remedied` is None where the catalogue has no remedy. The gain is compared with what was predicted at most for that very
    candidate; without a kept remedy or a prediction `within_bound` is None.
    """
    if not case.remedy:
        return {"remedied": None, "remedied_why": "the catalogue has no remedy", "within_bound": None}
    kept = [rung for rung in evidence["rungs"] if rung["outcome"] == "applied" and rung["name"] in case.remedy]
    if not kept:
        tried = {rung["name"]: rung["reason"] for rung in evidence["rungs"] if rung["name"] in case.remedy}
        words = "; ".join(f"{name}: {reason}" for name, reason in tried.items()) or "none of them was a candidate"
        return {"remedied": False, "remedied_why": words, "within_bound": None}
    best = max(kept, key=lambda rung: (rung["comparison"] or {}).get("ratio") or 0.0)
    gain, bound = (best["comparison"] or {}).get("ratio"), best["predicted_max_gain"]
    return {
        "remedied": True,
        "remedied_why": ", ".join(rung["name"] for rung in kept),
        "gain": gain,
        "bound": bound,
        "within_bound": abs(gain / bound - 1.0) <= BOUND_MARGIN if gain and bound else None,
    }


def not_tuned(case: Case, why: str) -> Row:
    """The part of a row about a tuning that did not happen."""
    return {
        "remedied": None,
        "remedied_why": why if case.remedy or case.clean else "the catalogue has no remedy",
        "within_bound": None,
    }


def score(rows: Sequence[Row]) -> Row:
    """The score over all rows; a script whose profile failed counts as not diagnosed, and a clean one as no false alarm.

    A share is None where no row could be judged.
    """
    ran = [row for row in rows if row["outcome"] != "skipped"]
    injected = [row for row in ran if not row["clean"]]
    clean = [row for row in ran if row["clean"]]
    return {
        "scripts": len(rows),
        "injected": len(injected),
        "clean": len(clean),
        "failed": sum(row["outcome"] == "failed" for row in ran),
        "skipped": len(rows) - len(ran),
        "diagnosed_frac": _share([row["diagnosed"] for row in injected]),
        "located_frac": _share([row["located"] for row in injected]),
        "clean_false_alarms": sum(row["outcome"] == "profiled" and not row["diagnosed"] for row in clean),
        "clean_judged": sum(row["outcome"] == "profiled" for row in clean),
        "remedied_frac": _share([row["remedied"] for row in injected if row["remedied"] is not None]),
        "within_bound_frac": _share([row["within_bound"] for row in injected if row["within_bound"] is not None]),
    }


def _share(answers: Sequence[bool]) -> float | None:
    return sum(answers) / len(answers) if answers else None
