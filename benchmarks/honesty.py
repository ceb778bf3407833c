"""Measure how reliable the verdicts are on this machine: a plan against itself (A/A) and injected slowdowns (power).

Counted are false `faster` or `slower` verdicts of A/A, and detected slowdowns.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from time import monotonic
from typing import Any

from benchmarks.record import ROOT, record
from benchmarks.rows import Rows
from hasten.core.plan import Plan
from hasten.core.stats import Verdict
from hasten.tune.proof.compare import Comparison, compare
from hasten.tune.trials.pair import TURNS, Design
from hasten.tune.trials.trial import TrialSetting

UPDATES = 250
_KIND = "comparison"
JOBS = ROOT / "benchmarks" / "jobs" / "steady.py"


def run_aa(num: int = 40) -> Path:
    """Compare the steady job with itself `num` times, each time with a different seed."""
    found = _many("SteadyJob", num, first_seed=1000)
    false = sum(row["verdict"] in (Verdict.FASTER, Verdict.SLOWER) for row in found)
    summary = {"comparisons": num, "false_verdicts": false, "false_frac": false / num, "verdicts": _tally(found)}
    return record("aa", {**summary, "rows": found}, f"python -m benchmarks aa --count {num}")


def run_power(num: int = 20) -> Path:
    """Compare the steady job with versions slowed down by 10 % and 20 %, `num` times each."""
    result: dict[str, Any] = {}
    for frac, job in ((0.10, "Slower10Job"), (0.20, "Slower20Job")):
        found = _many(job, num, first_seed=5000)
        slower = sum(row["verdict"] == Verdict.SLOWER for row in found)
        result[f"plus_{frac * 100:.0f}_percent"] = {
            "comparisons": num, "found": slower, "found_frac": slower / num, "verdicts": _tally(found), "rows": found,
        }  # fmt: skip
    return record("power", result, f"python -m benchmarks power --count {num}")


def _many(candidate: str, num: int, *, first_seed: int) -> list[dict[str, Any]]:
    """Compare the steady job with `candidate`, one comparison after another.

    Comparisons of an interrupted run are reused if they were made by the same code.
    """
    rows = Rows(candidate)
    for number in range(len(rows.of(_KIND)), num):
        rows.add(_KIND, _one(candidate, number, first_seed))
    rows.finish()
    return rows.of(_KIND)[:num]


def _one(candidate: str, number: int, first_seed: int) -> dict[str, Any]:
    started = monotonic()
    with tempfile.TemporaryDirectory(prefix="hasten-") as folder:
        base = TrialSetting(target=f"{JOBS}:SteadyJob", folder=Path(folder))
        other = TrialSetting(target=f"{JOBS}:{candidate}", folder=Path(folder))
        design = Design(updates=UPDATES, seed=first_seed + 100 * number, turns=TURNS)
        found = compare(base, Plan(), Plan(), design, candidate_setting=other)
    print(_line(candidate, number, found, monotonic() - started), flush=True)
    return {"number": number, "seconds": monotonic() - started, **found.to_dict()}


def _line(candidate: str, number: int, found: Comparison, seconds: float) -> str:
    if found.interval is None:
        return f"{candidate} {number}: {found.verdict}: {found.why}, {seconds:.0f} s"
    interval = found.interval
    words = f"{found.verdict} {interval.ratio:.3f} ({interval.low:.3f} to {interval.high:.3f}), {interval.pairs} pairs"
    return f"{candidate} {number}: {words}, {found.retaken} retaken, {seconds:.0f} s"


def _tally(rows: list[dict[str, Any]]) -> dict[str, int]:
    return {str(verdict): sum(row["verdict"] == verdict for row in rows) for verdict in Verdict}
