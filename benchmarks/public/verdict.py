"""What is recorded of a tuning, and how the scripts are counted. Pure functions."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from benchmarks.groundtruth.traceml import CATEGORIES
from hasten.core.card import Bottleneck
from hasten.report import parse
from hasten.report.words import headline

JUDGED = Path(__file__).with_name("judged.toml")
"""Whether each diagnosis is right, judged by hand from the functions' times, with the reason."""
GOALS: Mapping[str, float] = {
    "scripts": 30, "diagnosis_right": 27, "faster": 15, "ratio": 1.3, "mean": 1.35, "slowest": 0.98, "patch_share": 0.8,
}  # fmt: skip
"""Scripts, right diagnoses, scripts at least `ratio` as fast in whole runs, geometric mean, slowest, share of the patch."""

LEAST_SAVED = 0.05
"""Share of a whole run that the techniques of a plan must save for the patch to be compared with them."""

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


def load_judged() -> dict[str, Row]:
    """Return the judgements of diagnoses, by script: `right`, and `reason`."""
    return tomllib.loads(JUDGED.read_text(encoding="utf-8")) if JUDGED.exists() else {}


def is_faster(row: Row) -> bool:
    """Return whether a script was proved to reach the goal's speedup, with its losses within the gate."""
    tuned = found(row, "tune")
    return tuned is not None and tuned["within_gate"] and (tuned["low"] or 0.0) >= GOALS["ratio"]


def as_without(row: Row) -> bool | None:
    """Return whether a script ran as without Hasten: exactly without a plan, closely under it. None if it was not run."""
    whole = found(row, "whole")
    if whole is None:
        return None
    return exact(row) and all(whole[arm]["close"] for arm in ("plan", "patch") if whole[arm])


def exact(row: Row) -> bool:
    """Return whether a script printed exactly the same under Hasten without a plan, and under an empty one."""
    whole = found(row, "whole")
    return whole is not None and all(whole[arm]["same"] for arm in ("alone", "empty") if whole.get(arm))


def whole_ratio(row: Row) -> float | None:
    """Return how much faster the whole run is under the plan, even an empty one; None if this cannot be said."""
    whole = found(row, "whole")
    if whole is None or row.get("varies"):
        return None
    under = whole["plan"] or whole.get("empty")
    return float(under["ratio"]) if under else 1.0


def patch_share(row: Row) -> float | None:
    """Return the patch's saved time as a share of what the techniques of the plan save, beyond an empty plan.

    Variables of the plan that no source can set are set with the patch (`patch_variables`; not in rows without it).

    At most 1: a patch that saves more than its plan makes up for none of another script. None if they save less than 5 % of
    the run, or if this is unknown.
    """
    whole = found(row, "whole")
    if whole is None or row.get("varies") or not whole["plan"]:
        return None
    empty = whole["empty"]["ratio"] if whole.get("empty") else 1.0
    saved = 1 / empty - 1 / whole["plan"]["ratio"]
    if saved < LEAST_SAVED:
        return None
    return min(float((1 - 1 / whole["patch"]["ratio"]) / saved), 1.0) if whole["patch"] else 0.0


def score(rows: Sequence[Row]) -> Row:
    """Count what was reached over all scripts, and judge the goals."""
    ratios = [ratio for row in rows if (ratio := whole_ratio(row)) is not None]
    shares = [share for row in rows if (share := patch_share(row)) is not None]
    counts = {
        "scripts": len(rows),
        "repositories": len({row["repository"] for row in rows}),
        "profiled": sum(found(row, "profile") is not None for row in rows),
        "tuned": sum(found(row, "tune") is not None for row in rows),
        "faster": sum(is_faster(row) for row in rows),
        "ran": sum(found(row, "whole") is not None for row in rows),
        "exact": sum(exact(row) for row in rows),
        "as_without": sum(as_without(row) is True for row in rows),
        "judged": sum("judged" in row for row in rows),
        "diagnosis_right": sum(row.get("judged", {}).get("right", False) for row in rows),
        "whole_faster": sum(ratio >= GOALS["ratio"] for ratio in ratios),
        "whole_mean": geometric_mean(ratios) if ratios else None,
        "whole_slowest": min(ratios, default=None),
        "patch_share": sum(shares) / len(shares) if shares else None,
    }
    return {**counts, "goals": dict(GOALS), "reached": all(reached(counts).values())}


def reached(counts: Mapping[str, Any]) -> dict[str, bool]:
    """Return which goals are reached."""
    return {
        "scripts": counts["as_without"] >= max(GOALS["scripts"], counts["scripts"]),
        "diagnosis_right": counts["diagnosis_right"] >= GOALS["diagnosis_right"],
        "faster": counts["whole_faster"] >= GOALS["faster"],
        "mean": (counts["whole_mean"] or 0.0) >= GOALS["mean"],
        "slowest": (counts["whole_slowest"] or 0.0) >= GOALS["slowest"],
        "patch_share": (counts["patch_share"] or 0.0) >= GOALS["patch_share"],
    }


def traceml_right(row: Row) -> bool | None:
    """Return whether TraceML names the bottleneck of a script; None if it was not judged by hand.

    Where the diagnosis of Hasten was judged right, that is the bottleneck.
    """
    rivals, judged = found(row, "rivals"), row.get("judged")
    if not rivals or not judged or not judged["right"]:
        return None
    named = CATEGORIES.get(rivals["traceml"].get("kind"), frozenset())
    return Bottleneck(row["profile"]["found"]["bottleneck"]["name"]) in named


def score_rivals(rows: Sequence[Row]) -> Row:
    """Count what other tuners reached, over scripts on which they were started."""
    each = [rivals for row in rows if (rivals := found(row, "rivals"))]
    right = [answer for row in rows if (answer := traceml_right(row)) is not None]
    answered = [rivals["traceml"] for rivals in each if rivals["traceml"].get("kind") in CATEGORIES]
    doctors = [rivals["train_doctor"] for rivals in each]
    return {
        "proved": sum(doctor["gain"] is not None for doctor in doctors),
        "broken": sum(bool((doctor.get("whole") or {}).get("failures")) for doctor in doctors),
        "answered": len(answered),
        "marked": sum(answer["marked"] for answer in answered),
        "judged": len(right),
        "right": sum(right),
        "ended": sum(rivals["traceml"]["outcome"] == "ended" for rivals in each),
    }
