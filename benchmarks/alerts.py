"""Measure how soon alerts find faults, and how often they are false.

Real runs are disturbed at a known step. Their windows are recorded and replayed through the rules. Reported are the windows
from the fault to the alert, missed faults, and false alarms per 1,000 windows without a fault. Goals: 15 % longer steps are
found within 4 windows of 20 steps, with at most 2 false alarms per 1,000 windows after the calibration.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import hasten
from benchmarks.jobs.faulty import FAULTS, Fault, LoaderBoundJob, faulty
from benchmarks.record import ROOT
from benchmarks.result_file import ResultFile, Row
from hasten.core.errors import HastenError
from hasten.core.plan import Plan
from hasten.core.target import load_job
from hasten.monitor.alerts.engine import Alerts
from hasten.monitor.alerts.judge import FIRST, WARM_UP, step_s
from hasten.monitor.alerts.rule import load_rules, symptoms
from hasten.monitor.of_loop import follow_loop
from hasten.monitor.window import Start, Window
from hasten.monitor.windows_file import read_windows, windows_path
from hasten.optimizations import catalogue
from hasten.train.guards.non_finite import NonFinitePolicy
from hasten.train.run import RunOptions, train

JOBS = {"text": (800, 1300), "loader": (2000, 3200)}
"""Job -> step of the fault, and steps in all: about 40 windows before the fault, and 25 after it."""
COUNT = 2
"""Runs with each fault. There are twice as many without one."""
MOST_S = 1800.0
"""Seconds that a run may take."""
EXPECTED = {
    "sleep_15": ("slower", "data_wait"),
    "sleep_50": ("slower", "data_wait"),
    "neighbour": ("slower", "data_wait"),
    "leak": ("memory_growth",),
    "nan": ("loss_not_finite",),
    "spike": ("loss_spike",),
    "hang": ("stalled",),
    "recompiles": ("recompiles",),
}
"""Fault -> rules of which one must fire."""
LEAST_FRAC = next(rule.change for rule in load_rules()[0] if rule.name == "slower")
"""A fault that is to make steps slower does no harm below this."""
LIMITS = (0.06, 0.08, 0.10, 0.12, 0.14)
"""Limits of the rule `slower` that are compared."""


def main(arguments: list[str]) -> None:
    """Run the benchmark from the command line. Continues where an interrupted run stopped."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks alerts", description=__doc__)
    parser.add_argument("--count", type=int, default=COUNT, help="runs with each fault")
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=FAULTS)
    parser.add_argument("--again", action="store_true", help="repeat what was measured")
    parser.add_argument("--replay", action="store_true", help="judge the recorded windows again, without new runs")
    asked = parser.parse_args(arguments)
    results = ResultFile("alerts", "python -m benchmarks alerts", _whole)
    runs = product(range(2 * asked.count), asked.jobs, asked.faults) if not asked.replay else ()
    for number, job, fault in runs:
        name = f"{job}_{fault}_{number}"
        if (fault == "none" or number < asked.count) and (asked.again or name not in results.rows):
            row = run_once(job, fault, number)
            results.put(name, "run", row)
            print(_line(row), flush=True)
    results.save()
    print(f"wrote {results.path}", flush=True)


def run_once(job: str, fault: str, number: int) -> Row:
    """Train a job with a fault in a process of its own, and return its windows."""
    with tempfile.TemporaryDirectory(prefix="hasten-") as name:
        command = [sys.executable, "-m", "benchmarks.alerts", job, fault, str(number), name]
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=MOST_S, check=False)
            ended, words = done.returncode, done.stdout + done.stderr
        except subprocess.TimeoutExpired as error:
            ended, words = None, str(error)
        windows = read_windows(windows_path(Path(name)))
    units = {name: windows[0].unit(name) for name in _metrics()} if windows else {}
    return {
        "job": job,
        "fault": fault,
        "number": number,
        "at": JOBS[job][0],
        "exit_status": ended,
        "said": words[-1000:],
        "units": {name: unit for name, unit in units.items() if unit != "1"},
        "windows": [_short(window) for window in windows],
    }


def judged(row: Row, limit: float = LEAST_FRAC) -> Row:
    """Replay the windows of a run through the built-in rules, with a limit of `slower`. Return what fired and how soon.

    A fault is masked if its alert was firing already: then it cannot be found. If it is to make steps slower, the row says
    by how much it did.
    """
    windows = _windows(row)
    rules = [replace(rule, change=limit) if rule.name == "slower" else rule for rule in load_rules()[0]]
    alerts = Alerts([rule.by_guards() for rule in rules])
    began = perf_counter()
    changes = [(place, alert) for place, window in enumerate(windows) for alert in alerts.judge(window)]
    seconds = perf_counter() - began
    fired = [(place, alert) for place, alert in changes if alert.state == "firing"]
    none = row["fault"] == "none"
    before = len(windows) if none else _ended_before(windows, row["at"])
    expected = EXPECTED.get(row["fault"], ())
    right = [place for place, alert in fired if place >= before and alert.rule in expected]
    last = {alert.rule: alert.state for place, alert in changes if place < before}
    return {
        **{key: row[key] for key in ("job", "fault", "number", "exit_status")},
        "windows": len(windows),
        "undisturbed_windows": max(before - WARM_UP - FIRST, 0),
        "false_alarms": [alert.rule for place, alert in fired if place < before],
        "fired": [alert.rule for place, alert in fired if place >= before],
        "delay_windows": right[0] - before + 1 if right else None,
        "slowed_frac": slowed_frac(windows[WARM_UP:before], windows[before:]) if "slower" in expected else None,
        "masked": not right and any(last.get(rule) == "firing" for rule in expected),
        "judged_s": seconds,
        "cost_frac": seconds / max(sum(window.seconds for window in windows), 1e-9),
    }


def _ended_before(windows: Sequence[Window], at: int) -> int:
    """Return the number of windows that ended before a fault. Last ones without a step are part of it: a hang."""
    count = sum(window.to_step <= at for window in windows)
    while count and not windows[count - 1].steps:
        count -= 1
    return count


def slowed_frac(before: Sequence[Window], after: Sequence[Window]) -> float | None:
    """Return by how much steps take longer after a fault than before, in the median of windows; None if a run has none."""
    usual, now = ([seconds for window in windows if (seconds := step_s(window))] for windows in (before, after))
    return median(now) / median(usual) - 1.0 if usual and now else None


def summarize(rows: Sequence[Row]) -> dict[str, Any]:
    """Return delays and misses by job and fault, and the rate of false alarms."""
    results = [judged(row) for row in rows]
    faults: dict[str, Any] = {}
    for job, fault in dict.fromkeys((result["job"], result["fault"]) for result in results):
        if fault == "none":
            continue
        same = [result for result in results if (result["job"], result["fault"]) == (job, fault)]
        delays = [result["delay_windows"] for result in same if result["delay_windows"] is not None]
        lost = [result for result in same if result["delay_windows"] is None]
        slowed = [result for result in lost if not result["masked"] and result["slowed_frac"] is not None]
        harmless = [result for result in slowed if result["slowed_frac"] < LEAST_FRAC]
        faults[f"{job}_{fault}"] = {
            "runs": len(same),
            "missed": len(lost) - len(harmless) - sum(result["masked"] for result in lost),
            "masked": sum(result["masked"] for result in lost),
            "harmless": len(harmless),
            "delays_windows": delays,
            "median_delay_windows": median(delays) if delays else None,
        }
    return {
        "faults": faults,
        **_false_alarms(results),
        "median_judging_frac": median(result["cost_frac"] for result in results) if results else None,
        "limits": [of_limit(rows, limit) for limit in LIMITS],
        "results": results,
    }


def of_limit(rows: Sequence[Row], limit: float) -> dict[str, Any]:
    """Return the rate of false alarms with a limit of `slower`, and the delays of 15 % longer steps (None if missed)."""
    results = [judged(row, limit) for row in rows]
    delays = [result["delay_windows"] for result in results if result["fault"] == "sleep_15"]
    return {"limit": limit, **_false_alarms(results), "delays_windows": delays}


def _false_alarms(results: Sequence[Row]) -> dict[str, Any]:
    undisturbed = sum(result["undisturbed_windows"] for result in results)
    false = [rule for result in results for rule in result["false_alarms"]]
    return {
        "undisturbed_windows": undisturbed,
        "false_alarms": false,
        "false_alarms_per_1000": 1000 * len(false) / undisturbed if undisturbed else None,
    }


def _whole(rows: Mapping[str, Row], _beside: Row) -> Row:
    return {**summarize([row["run"] for row in rows.values()]), "rows": list(rows.values())}


def _line(row: Row) -> str:
    result = judged(row)
    found = "not found" if result["delay_windows"] is None else f"found after {result['delay_windows']} windows"
    words = "undisturbed" if row["fault"] == "none" else found
    return (
        f"{row['job']} {row['fault']} {row['number']}: {words}, false alarms {result['false_alarms']}, "
        f"{result['windows']} windows, exit status {row['exit_status']}"
    )


def _metrics() -> set[str]:
    """Return the metrics that rules and symptoms read, of those that a window holds as values."""
    named = {rule.metric for rule in load_rules()[0]} | {symptom.metric for symptom in symptoms()}
    return named - {"", "step", "share.data"}


def _short(window: Window) -> dict[str, Any]:
    """Return what rules read of a window, as plain data."""
    line, metrics = window.to_dict(), _metrics()
    values = {
        name: float(f"{value:.6g}") if isinstance(value, float) else value
        for name, value in line["values"].items()
        if name in metrics
    }
    marks = [mark for mark in line["marks"] if mark["words"]]
    return {**line, "values": values, "marks": marks}


def _windows(row: Row) -> list[Window]:
    start = Start(run=f"{row['job']}-{row['fault']}-{row['number']}", units=row["units"])
    return [Window.from_dict(line, start) for line in row["windows"]]


def train_disturbed(job: str, fault: str, number: int, out: Path) -> None:
    """Train a job with a fault in this process."""
    kind: type[hasten.Job] = LoaderBoundJob
    if job == "text":  # its documents are padded, so that all its steps take the same time
        kind = type("ShortTextJob", (type(load_job(str(ROOT / "examples" / "text.py") + ":TextJob")),), {"batch_size": 2})
    kind = type("SeededJob", (kind,), {"seed": number})
    at, end = JOBS[job]
    disturbs = Fault(fault, at)
    options = RunOptions(observe=follow_loop(out), non_finite=NonFinitePolicy(policy="skip"))
    try:
        train(faulty(kind, disturbs), Plan.from_dict({}, catalogue()), out, max_updates=end, options=options)
    finally:
        disturbs.end()


if __name__ == "__main__":
    try:
        train_disturbed(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
    except HastenError as error:
        sys.exit(f"{type(error).__name__}: {error}")
