"""Score how well Hasten diagnoses and fixes scripts with a known bottleneck, each run unchanged through the command line.

`python -m benchmarks groundtruth [--part profile|tune|cost|traceml ...] [--only NAME ...]`. `profile` runs
`hasten profile SCRIPT`, `tune` runs `hasten tune SCRIPT`, `cost` measures the overhead of watching a script (cost.py), and
`traceml` runs TraceML on the same scripts if `--traceml` gives the path of its command. Rows are written as they are
measured; parts already measured at the current commit are skipped.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.groundtruth.cost import own_cost, run_cost
from benchmarks.groundtruth.processes import unwinding_when_told_to_end, wait
from benchmarks.groundtruth.traceml import ARMS, check_python, traceml_part, traceml_score
from benchmarks.groundtruth.truth import Case, load_truth
from benchmarks.groundtruth.verdict import GOALS, failed_part, judged, profile_part, reached, score, tune_part
from benchmarks.record import ROOT
from benchmarks.result_file import ResultFile, Row
from hasten.cli.say import parse_duration

NAME = "groundtruth"
PARTS = ("profile", "tune", "cost", "traceml")
BUDGET = "3m"
SECONDS = 1.0
"""Seconds of `hasten profile`: a script is watched for eight times as long, and its slowest loops take 0.2 s per step."""
TUNE_STEPS = 1_000_000
"""A tuned script must not end before the tuning does."""
PROFILE_LIMIT_S = 240.0
TUNE_SLACK_S = 300.0


def main(words: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks groundtruth", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these scripts; rows of others stay")
    parser.add_argument("--part", nargs="+", choices=PARTS, default=PARTS, help="only these parts; others stay")
    parser.add_argument("--no-tune", action="store_true", help="skip the part that takes longest")
    parser.add_argument("--budget", default=BUDGET, help="budget of each tuning")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="seconds of each profile, as in `hasten profile`")
    parser.add_argument("--traceml", type=Path, metavar="PATH", help="the command of TraceML, to run it on the same scripts")
    parser.add_argument("--rounds", type=int, help="number of fresh processes for Hasten's own overhead")
    parser.add_argument("--again", action="store_true", help="repeat what was measured at this commit")
    asked = parser.parse_args(words)
    parts = [part for part in asked.part if part != "tune" or not asked.no_tune]
    results = ResultFile(
        NAME, f"python -m benchmarks groundtruth --budget {asked.budget} --seconds {asked.seconds:g}", whole
    )
    traceml = asked.traceml and asked.traceml.absolute()
    if traceml:
        check_python(traceml)
    with unwinding_when_told_to_end():
        run_scripts(results, load_truth(asked.only), _measures(parts, asked, traceml), again=asked.again)
        if "cost" in parts and not asked.only:
            run_cost(results, traceml, rounds=asked.rounds, again=asked.again)
    results.save()
    print(f"wrote {results.path}", flush=True)


Measure = Callable[[Case], Row]


def _measures(parts: Sequence[str], asked: argparse.Namespace, traceml: Path | None) -> dict[str, Measure]:
    """Return the functions that measure each part of a script."""
    found: dict[str, Measure] = {
        "profile": lambda case: call_profile(case, asked.seconds),
        "tune": lambda case: call_tune(case, asked.budget),
    }
    if traceml is not None:
        found["traceml"] = lambda case: traceml_part(traceml, case)
    return {part: measure for part, measure in found.items() if part in parts}


def run_scripts(
    results: ResultFile, cases: Mapping[str, Case], measures: Mapping[str, Measure], *, again: bool = False
) -> None:
    """Measure each missing part of each script, and print the outcome."""
    for part, measure in measures.items():
        for name, case in cases.items():
            if why := not_measured(case, part):
                print(f"{part:<9}{name:<24}skipped: {why}", flush=True)
                continue
            if not again and results.fresh(results.rows.get(name, {}).get(part)):
                continue
            started = perf_counter()
            found = measure(case)
            results.put(name, part, {**found, "seconds": perf_counter() - started})
            print(f"{part:<9}{name:<24}{told(part, judged(case, results.rows[name]))}", flush=True)


def not_measured(case: Case, part: str) -> str:
    """Explain why a part cannot be measured for a script; empty if it can."""
    if case.missing:
        return case.missing
    if part == "tune" and not case.remedy:
        return "nothing to remedy" if case.clean else "the catalogue has no remedy"
    return ""


def told(part: str, row: Row) -> str:
    """Summarize the outcome of a part in one line."""
    found, expected = row[part], " or ".join(row["expected"])
    seconds = f"{found['seconds']:4.0f} s  "
    if found.get("outcome") == "failed":
        return f"{seconds}failed: {found['why']}"
    if part == "profile":
        right = "right" if found["diagnosed"] else "WRONG"
        place = ", place not named" if found["located"] is False else ""
        return f"{seconds}{right:<6}{found['named']} ({found['share']:.0%}), expected {expected}{place}"
    if part == "tune":
        gain = f" {found['gain']:.2f}x of {found['bound'] or 0:.2f}x" if found.get("gain") else ""
        return f"{seconds}{'right' if found['remedied'] else 'WRONG':<6}{found['remedied_why']}{gain}"
    answers = ", ".join(f"{arm}: {found[arm]['kind']} {'right' if found[arm]['right'] else 'not right'}" for arm in ARMS)
    return f"{seconds}{answers}; expected {expected}"


def whole(rows: Mapping[str, Row], beside: Row) -> Row:
    """Return the result: the score, and all rows in the order of truth.toml, judged again."""
    listed = [judged(case, rows.get(name, {})) for name, case in load_truth().items()]
    found = {**score(listed), **own_cost(beside)}
    rival = {"traceml": traceml_score(listed), "traceml_why": "" if traceml_score(listed) else "not installed"}
    return {**found, "goals": dict(GOALS), "reached": reached(found), **rival, "rows": listed}


def call_profile(case: Case, seconds: float = SECONDS) -> Row:
    """Run `hasten profile` on a script, in a separate working folder."""
    with tempfile.TemporaryDirectory(prefix="groundtruth-") as folder:
        out = Path(folder) / "profile.json"
        arguments = ["profile", str(case.script), "--json", str(out), "--seconds", f"{seconds:g}"]
        why = _command(arguments, case.steps, Path(folder), PROFILE_LIMIT_S)
        if not why and not out.exists():
            why = "`hasten profile` succeeded but wrote no JSON"
        if why:
            return failed_part(why)
        found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    if not isinstance(found.get("bottleneck"), dict):
        return failed_part("the profile names no bottleneck")
    return profile_part(found)


def call_tune(case: Case, budget: str = BUDGET) -> Row:
    """Run `hasten tune` on a script, in a separate working folder."""
    with tempfile.TemporaryDirectory(prefix="groundtruth-") as folder:
        arguments = ["tune", str(case.script), "--budget", budget, "--out", folder]
        why = _command(arguments, TUNE_STEPS, Path(folder), parse_duration(budget) + TUNE_SLACK_S)
        evidence = Path(folder) / "evidence.json"
        if why or not evidence.exists():
            return failed_part(why or "`hasten tune` wrote no evidence")
        return tune_part(case, json.loads(evidence.read_text(encoding="utf-8")))


def _command(arguments: list[str], steps: int, folder: Path, limit_s: float) -> str:
    """Run `hasten ARGUMENTS -- --steps N` in a folder; return why it failed, in its own last words, or an empty string."""
    command = [sys.executable, "-m", "hasten", *arguments, "--", "--steps", str(steps)]
    environment = {**os.environ, "COLUMNS": "1000", "NO_COLOR": "1"}  # keeps each message on one line
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
        )
        code = wait(process, limit_s)
        if code is None:
            return f"`hasten {arguments[0]}` did not end within {limit_s:.0f} s"
        said.seek(0)
        words = [line.strip(" │\n") for line in said if any(sign.isalnum() for sign in line)]
    last = words[-1] if words else "it printed nothing"
    return f"`hasten {arguments[0]}` ended with {code}: {last}".replace(f"{ROOT}/", "") if code else ""
