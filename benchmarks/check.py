"""Measure how reliable `hasten check` is: commits that change nothing (A/A), and commits with an injected slowdown.

Each check runs on a real repository of two commits, with the budget that a person would give it. Counted are false verdicts
(faster or slower) of the A/A commits, and slowdowns that were found. Goals: at most 2.5 % false verdicts; 60 % of the
slowdowns of 5 % found, 95 % of those of 10 %, all of those of 20 %.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

from benchmarks.record import ROOT
from benchmarks.result_file import ResultFile, Row
from hasten.check.check import CheckRequest, run_check
from hasten.check.paired import Options
from hasten.check.subject import Subject
from hasten.cli.say import parse_duration
from hasten.core.errors import HastenError
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
    """Run the benchmark from the command line. Continues where an interrupted run stopped."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks check", description=__doc__)
    parser.add_argument("--count", type=int, help=f"checks of each kind; by default {AA_COUNT} A/A and {SLOW_COUNT} others")
    parser.add_argument("--budget", default="10m", help="budget of each check")
    parser.add_argument("--slowdowns", type=float, nargs="+", default=SLOWDOWNS, help="shares; 0 is A/A")
    parser.add_argument("--again", action="store_true", help="repeat what was measured")
    asked = parser.parse_args(arguments)
    path = run_checks(asked.count, parse_duration(asked.budget), tuple(asked.slowdowns), again=asked.again)
    print(f"wrote {path}", flush=True)


def run_checks(count: int | None, budget_s: float, slowdowns: tuple[float, ...] = SLOWDOWNS, *, again: bool = False) -> Path:
    """Run the checks that have no row yet, and write each result with its raw samples as it comes."""
    results = ResultFile("check", "python -m benchmarks check", _whole)
    for frac in slowdowns:
        for number in range(count or (SLOW_COUNT if frac else AA_COUNT)):
            name = f"{_kind(frac)}_{number}"
            if again or name not in results.rows:
                row = check_once(frac, number, budget_s)
                results.put(name, "check", row)
                print(_line(row), flush=True)
    results.save()
    return results.path


def _kind(frac: float) -> str:
    return f"plus_{100 * frac:g}_percent" if frac else "aa"


def _whole(rows: Mapping[str, Row], _beside: Row) -> Row:
    """Return the rates of each kind, and all rows."""
    checks = [row["check"] for row in rows.values()]
    kinds = {_kind(check["injected_frac"]): check["injected_frac"] for check in checks}
    rates = {name: summarize([check for check in checks if check["injected_frac"] == frac]) for name, frac in kinds.items()}
    return {"kinds": rates, "rows": list(rows.values())}


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
    return {"injected_frac": frac, "number": number, "budget_s": budget_s, **found, "seconds": monotonic() - started}


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the rates of the verdicts of one kind of commits."""
    verdicts = {name: sum(row["verdict"] == name for row in rows) for name in (*map(str, Verdict), "failed")}
    false = verdicts["faster"] + verdicts["slower"]
    longer = [1.0 / row["ratio"] - 1.0 for row in rows if row.get("ratio")]
    return {
        "checks": len(rows),
        "verdicts": verdicts,
        "changed_frac": false / len(rows) if rows else None,
        "slower_frac": verdicts["slower"] / len(rows) if rows else None,
        "not_recurred": sum(len(row.get("sessions", ())) > 1 and row["verdict"] == "undecided" for row in rows),
        "median_longer_frac": median(longer) if longer else None,
        "median_seconds": median(row["seconds"] for row in rows) if rows else None,
    }


def _line(row: dict[str, Any]) -> str:
    return f"{row['injected_frac']:.0%} {row['number']}: {row['headline']}, {row['seconds']:.0f} s"


def _git(folder: Path, *arguments: str) -> None:
    who = {f"GIT_{role}_{what}": "benchmark@localhost" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    plain = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    command = ["git", "-C", str(folder), *arguments]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, **who, **plain})
