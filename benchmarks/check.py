"""Measure how reliable `hasten check` is: commits that change nothing (A/A), and commits with an injected slowdown.

Each check runs on a real repository of two commits, with the budget that a person would give it. Counted are false verdicts
(faster or slower) of the A/A commits, and slowdowns that were found. Goals: at most 2.5 % false verdicts; 60 % of the
slowdowns of 5 % found, 95 % of those of 10 %, all of those of 20 %.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

from benchmarks.record import ROOT, record
from hasten.check.check import CheckRequest, run_check
from hasten.check.paired import Options
from hasten.check.subject import Subject
from hasten.cli.say import parse_duration
from hasten.core.errors import HastenError
from hasten.core.provenance import commit_of
from hasten.core.stats import MIN_FLOOR_FRAC, Verdict

SLOWDOWNS = (0.0, 0.05, 0.10, 0.20)
AA_COUNT, SLOW_COUNT = 40, 20
"""Number of A/A commits, and of commits with each slowdown."""
SEEDS = 10_000
"""Distance between the first seeds of two checks."""
JOB = ROOT / "benchmarks" / "jobs" / "steady.py"
CHANGED = """

class CheckedJob(SteadyJob):
    \"\"\"The steady job as of change {number}.\"\"\"

    drag_frac = {frac}
"""


def main(arguments: list[str]) -> None:
    """Run the benchmark from the command line. Continues where an interrupted run of the same code stopped."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks check", description=__doc__)
    parser.add_argument("--count", type=int, help=f"checks of each kind; by default {AA_COUNT} A/A and {SLOW_COUNT} others")
    parser.add_argument("--budget", default="10m", help="budget of each check")
    parser.add_argument("--slowdowns", type=float, nargs="+", default=SLOWDOWNS, help="shares; 0 is A/A")
    asked = parser.parse_args(arguments)
    print(f"wrote {run_checks(asked.count, parse_duration(asked.budget), tuple(asked.slowdowns))}", flush=True)


def run_checks(count: int | None, budget_s: float, slowdowns: tuple[float, ...] = SLOWDOWNS) -> Path:
    """Run all checks and write their results with the raw samples."""
    rows = _kept_rows()
    for frac in slowdowns:
        for number in range(count or (SLOW_COUNT if frac else AA_COUNT)):
            if not any((row["injected_frac"], row["number"]) == (frac, number) for row in rows):
                rows.append(check_once(frac, number, budget_s))
                with _kept_file().open("a", encoding="utf-8") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
                print(_line(rows[-1]), flush=True)
    kinds = {f"plus_{100 * frac:g}_percent" if frac else "aa": frac for frac in slowdowns}
    summary = {name: summarize([row for row in rows if row["injected_frac"] == frac]) for name, frac in kinds.items()}
    path = record("check", {"budget_s": budget_s, **summary}, "python -m benchmarks check")
    _kept_file().unlink(missing_ok=True)  # the next run starts from scratch
    return path


def check_once(frac: float, number: int, budget_s: float) -> dict[str, Any]:
    """Check one commit whose updates take `frac` longer than those of its parent, and return the result as a row."""
    started = monotonic()
    with tempfile.TemporaryDirectory(prefix="hasten-") as name:
        folder = Path(name)
        _git(folder, "init", "-q", "-b", "main")
        source = JOB.read_text(encoding="utf-8")
        for change, drag in enumerate((0.0, frac)):
            (folder / "job.py").write_text(source + CHANGED.format(number=change, frac=drag), encoding="utf-8")
            _git(folder, "add", "-A")
            _git(folder, "commit", "-q", "-m", f"Change {change}")
        seed = SEEDS * (number + 1)
        options = Options(budget_s=budget_s, floor_frac=MIN_FLOOR_FRAC, seed=seed)
        try:
            found = run_check(
                CheckRequest(subject=Subject(target="job.py:CheckedJob", folder=folder), options=options)
            ).to_dict()
        except HastenError as error:
            found = {"verdict": "failed", "headline": str(error)}
    return {"injected_frac": frac, "number": number, **found, "seconds": monotonic() - started}


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the rates of the verdicts of one kind of commits, with the rows."""
    verdicts = {name: sum(row["verdict"] == name for row in rows) for name in (*map(str, Verdict), "failed")}
    false = verdicts["faster"] + verdicts["slower"]
    return {
        "checks": len(rows),
        "verdicts": verdicts,
        "changed_frac": false / len(rows) if rows else None,
        "slower_frac": verdicts["slower"] / len(rows) if rows else None,
        "not_recurred": sum(len(row.get("sessions", ())) > 1 and row["verdict"] == "undecided" for row in rows),
        "median_seconds": median(row["seconds"] for row in rows) if rows else None,
        "rows": rows,
    }


def _line(row: dict[str, Any]) -> str:
    return f"{row['injected_frac']:.0%} {row['number']}: {row['headline']}, {row['seconds']:.0f} s"


def _kept_file() -> Path:
    """Return the file of finished checks of the present code."""
    path = ROOT / "hasten-out" / f"check-{commit_of(ROOT) or 'unknown'}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _kept_rows() -> list[dict[str, Any]]:
    """Return the finished checks of an interrupted run, if the same committed code made them."""
    path = _kept_file()
    if path.stem.endswith(("unknown", "+changes")):
        path.unlink(missing_ok=True)
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def _git(folder: Path, *arguments: str) -> None:
    who = {f"GIT_{role}_{what}": "benchmark@localhost" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    plain = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    command = ["git", "-C", str(folder), *arguments]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, **who, **plain})
