"""How well Upshift diagnoses and mends the scripts whose bottleneck is known, each run unchanged through the command line.

`python -m benchmarks groundtruth [--only NAME ...] [--budget 3m]`: `upshift profile SCRIPT` and then `upshift tune SCRIPT`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.groundtruth.truth import Case, load_truth
from benchmarks.groundtruth.verdict import GOALS, Row, about, judge_profile, judge_tuning, not_tuned, score
from benchmarks.record import RESULTS, ROOT, record
from upshift.cli.say import parse_duration

NAME = "groundtruth"
BUDGET = "3m"
PROFILE_LIMIT_S = 300.0
TUNE_SLACK_S = 300.0
OWN_COST_WHY = "not measured yet: it needs attached and unattached runs of a script that take turns"


def run_groundtruth(only: list[str] | None = None, budget: str = BUDGET) -> Path:
    """Profile and tune these scripts or all, and keep the score; rows of other scripts stay."""
    path = RESULTS / f"{NAME}.json"
    kept: dict[str, Row] = {}
    if only and path.exists():
        kept = {row["name"]: row for row in json.loads(path.read_text(encoding="utf-8"))["rows"]}
    for name, case in load_truth(only).items():
        row = kept[name] = score_case(case, budget)
        print(f"{name:<24}{row['outcome']:<10}{_told(row)}", flush=True)
    rows = [kept[name] for name in load_truth() if name in kept]
    own_cost = {"own_cost_frac_2ms": None, "own_cost_frac_100ms": None, "own_cost_why": OWN_COST_WHY}
    result = {**score(rows), **own_cost, "goals": dict(GOALS), "rows": rows}
    return record(NAME, result, f"python -m benchmarks groundtruth --budget {budget}")


def _told(row: Row) -> str:
    if row["outcome"] != "profiled":
        return str(row["why"])
    right = "right" if row["diagnosed"] else "WRONG"
    return f"{right:<7}{row['named']} ({row['share'] or 0:.0%}), expected {' or '.join(row['expected'])}"


def score_case(case: Case, budget: str) -> Row:
    """Profile and tune one script, in a working folder of its own, and judge both."""
    if case.missing:
        return {**about(case), "outcome": "skipped", "why": case.missing, **_unjudged(case, case.missing)}
    with tempfile.TemporaryDirectory(prefix="groundtruth-") as folder:
        profile, why = call_profile(case, Path(folder))
        if profile is None:
            return {**about(case), "outcome": "failed", "why": why, **_unjudged(case, "no profile")}
        tuned = tune_row(case, Path(folder), budget)
    return {**judge_profile(case, profile), **tuned}


def _unjudged(case: Case, why: str) -> Row:
    return {"diagnosed": False, "located": None if case.clean else False, **not_tuned(case, why)}


def call_profile(case: Case, folder: Path) -> tuple[dict[str, Any] | None, str]:
    """The profile that the command wrote, or None and why there is none."""
    out = folder / "profile.json"
    why = _command(["profile", str(case.script), "--json", str(out)], case, folder, PROFILE_LIMIT_S)
    if why:
        return None, why
    if not out.exists():
        return None, "`upshift profile` ended well and wrote no JSON"
    found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    if not isinstance(found.get("bottleneck"), dict):
        return None, "the profile names no bottleneck"
    return found, ""


def tune_row(case: Case, folder: Path, budget: str) -> Row:
    """Tune a script and judge it; a row without an answer, and why, where it is clean, has no remedy, or was not tuned."""
    if case.clean:
        return not_tuned(case, "nothing to remedy")
    if not case.remedy:
        return not_tuned(case, "the catalogue has no remedy")
    arguments = ["tune", str(case.script), "--budget", budget, "--out", str(folder)]
    why = _command(arguments, case, folder, parse_duration(budget) + TUNE_SLACK_S)
    evidence = folder / "evidence.json"
    if why or not evidence.exists():
        return not_tuned(case, why or "`upshift tune` wrote no evidence")
    return judge_tuning(case, json.loads(evidence.read_text(encoding="utf-8")))


def _command(arguments: list[str], case: Case, folder: Path, limit_s: float) -> str:
    """Run `upshift ARGUMENTS -- --steps N` in a folder; why it failed, in its own last words, or nothing."""
    command = [sys.executable, "-m", "upshift", *arguments, "--", "--steps", str(case.steps)]
    environment = {**os.environ, "COLUMNS": "1000", "NO_COLOR": "1"}  # so that a message is one line
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # the script of the user and its workers, too
            process.wait()
            return f"`upshift {arguments[0]}` did not end within {limit_s:.0f} s"
        said.seek(0)
        words = [line.strip(" │\n") for line in said if any(sign.isalnum() for sign in line)]
    last = words[-1] if words else "it said nothing"
    return f"`upshift {arguments[0]}` ended with {code}: {last}".replace(f"{ROOT}/", "") if code else ""
