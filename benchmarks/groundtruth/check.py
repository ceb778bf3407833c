"""Verify that each injected bottleneck exists on this machine: every script against its fixed twin, in fresh processes.

`python -m benchmarks.groundtruth.check [--only NAME ...] [--rounds N] [--length 0.5] [--again]`. The fixed twin is the same
script with `--fixed`: the same training without the injected bottleneck. An injected bottleneck must cost at least 1.3x, in
time or in peak memory. The twin of a clean script only repeats its arithmetic on one batch: everything around the arithmetic
of a clean script must cost almost nothing. Times are those printed by the scripts, for the training itself, without imports
and set-up. Rows are written as they are measured, so an interrupted run can continue.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.groundtruth.truth import INJECTED_LEAST, Case, load_truth
from benchmarks.result_file import ResultFile, Row
from hasten.core.errors import TrialError

NAME = "groundtruth_check"
CLEAN_MOST = 1.1
ROUNDS, MOST_ROUNDS = 3, 7
NEAR = 0.08
"""A ratio within this fraction of its limit is measured more often."""
LIMIT_S = 120.0

_TOLD = re.compile(r"^(\d+) steps in ([\d.]+) s$", re.MULTILINE)


@dataclass(frozen=True)
class Run:
    """One run of a script: its printed seconds per step, and its peak memory in bytes."""

    step_s: float
    peak_bytes: int


def run_script(case: Case, steps: int, *, fixed: bool) -> Run:
    """Run a script in a separate process.

    Raises:
        TrialError: It failed, took longer than two minutes, or did not print `N steps in S s` at the end.
    """
    command = [sys.executable, str(case.script), "--steps", str(steps), *(["--fixed"] if fixed else [])]
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        code, peak_bytes = _wait(process)
        out.seek(0)
        text = out.read().decode(errors="replace")
    told = _TOLD.search(text)
    if code or told is None or int(told.group(1)) != steps:
        kind, last = ("hung", f"not finished after {LIMIT_S:.0f} s") if code is None else ("raised", text.strip()[-300:])
        words = f"{' '.join(command[1:])} did not finish {steps} steps (exit code {code}): {last}"
        raise TrialError(words, kind="hung" if kind == "hung" else "raised")
    return Run(step_s=float(told.group(2)) / steps, peak_bytes=peak_bytes)


def _wait(process: subprocess.Popen[bytes]) -> tuple[int | None, int]:
    """Return the exit code (None if the process took too long and was killed) and the peak memory of a process."""
    deadline, late = time.monotonic() + LIMIT_S, False
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return None if late else process.returncode, usage.ru_maxrss * 1024
        if time.monotonic() > deadline and not late:
            process.kill()
            late = True
        time.sleep(0.02)


def check_case(case: Case, *, rounds: int = ROUNDS, length: float = 1.0) -> Row:
    """Run a script and its fixed twin in turns. Memory cases always run in full, because their length fills the memory."""
    steps = case.steps if case.judged_by == "memory" else max(round(case.steps * length), 1)
    naive: list[Run] = []
    fixed: list[Run] = []
    for number in range(max(rounds, MOST_ROUNDS)):
        for first in (number % 2 == 0, number % 2 != 0):
            (naive if first else fixed).append(run_script(case, steps, fixed=not first))
        if number + 1 >= rounds and not near_bound(judged(case, steps, naive, fixed)):
            break
    return judged(case, steps, naive, fixed)


def near_bound(row: Row) -> bool:
    """Return whether another round could change the verdict."""
    bound = CLEAN_MOST if row["clean"] else INJECTED_LEAST
    return bool(abs(row["ratio"] / bound - 1.0) < NEAR)


def judged(case: Case, steps: int, naive: Sequence[Run], fixed: Sequence[Run]) -> Row:
    """Judge the runs: the ratio of naive to fixed, and whether the script is as described in truth.toml."""
    if case.judged_by == "memory":
        ratio = median(one.peak_bytes / other.peak_bytes for one, other in zip(naive, fixed, strict=True))
    else:
        ratio = median(one.step_s / other.step_s for one, other in zip(naive, fixed, strict=True))
    return {
        "clean": case.clean,
        "judged_by": case.judged_by,
        "ratio": ratio,
        "holds": ratio <= CLEAN_MOST if case.clean else ratio >= INJECTED_LEAST,
        "steps": steps,
        "naive_step_s": [run.step_s for run in naive],
        "mended_step_s": [run.step_s for run in fixed],
        "naive_peak_bytes": [run.peak_bytes for run in naive],
        "mended_peak_bytes": [run.peak_bytes for run in fixed],
    }


def run_check(only: list[str] | None = None, *, rounds: int = ROUNDS, length: float = 1.0, again: bool = False) -> list[str]:
    """Check these scripts or all, and record the rows; return the names of scripts that differ from truth.toml."""
    results = ResultFile(NAME, "python -m benchmarks.groundtruth.check", whole)
    cases = load_truth(only)
    for name, case in cases.items():
        if case.missing:
            print(f"{name:<24}skipped: {case.missing}", flush=True)
        elif again or not results.fresh(results.rows.get(name, {}).get("check")):
            results.put(name, "check", check_case(case, rounds=rounds, length=length))
            print(f"{name:<24}{_told(results.rows[name]['check'])}", flush=True)
    checks = {name: results.rows[name]["check"] for name in cases if name in results.rows}
    return [name for name, row in checks.items() if not row["holds"]]


def _told(row: Row) -> str:
    steps = f"steps of {median(row['naive_step_s']) * 1e3:.1f} ms and {median(row['mended_step_s']) * 1e3:.1f} ms (fixed)"
    held = "" if row["holds"] else "  DIFFERS FROM truth.toml"
    rounds = f"{row['steps']} of them, {len(row['naive_step_s'])} rounds"
    return f"{row['ratio']:6.2f}x {row['judged_by']:<7}{steps}, {rounds}{held}"


def whole(rows: Mapping[str, Row], _beside: Row) -> Row:
    """Count the scripts that are as described, list the others, and return all rows."""
    cases = load_truth()
    checks = {name: rows[name]["check"] for name in cases if name in rows}
    return {
        "checked": len(checks),
        "skipped": sum(bool(case.missing) for case in cases.values()),
        "holding": sum(row["holds"] for row in checks.values()),
        "not_holding": [name for name, row in checks.items() if not row["holds"]],
        "injected_least": INJECTED_LEAST,
        "clean_most": CLEAN_MOST,
        "rows": [{"name": name, "check": row} for name, row in checks.items()],
    }


def main() -> None:
    """Run the command line; the exit code is 1 if a script differs from truth.toml."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.groundtruth.check", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these scripts; rows of others stay")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="number of runs of each script and of each twin")
    parser.add_argument("--length", type=float, default=1.0, help="fraction of each script's own number of steps")
    parser.add_argument("--again", action="store_true", help="repeat what was measured at this commit")
    asked = parser.parse_args()
    sys.exit(bool(run_check(asked.only, rounds=asked.rounds, length=asked.length, again=asked.again)))


if __name__ == "__main__":
    main()
