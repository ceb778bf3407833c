"""Measure what a model learns: a whole run under a plan, through the user's command, with the validation metric over time.

The weights are kept in `hasten-out`, next to the report of the job's tuning; `hasten recipes look` draws the detections.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from time import monotonic
from typing import Any

from benchmarks.record import ROOT
from hasten.train.periodic import WEIGHTS
from hasten.train.records.reports import read_reports


def run_learning(target: str, plan_toml: str, metric: str, updates: int | None = None) -> dict[str, Any]:
    """Train, and read the run's reports.

    Args:
        target: The job.
        plan_toml: The plan to run under.
        metric: Name of the validation metric.
        updates: Number of updates to stop after; None trains for the job's own duration.

    Returns:
        `best` and `last` of the metric, `seconds` of the whole command, and the `curve` of validation metrics by update.

    Raises:
        RuntimeError: The run failed, or reported no such metric.
    """
    with tempfile.TemporaryDirectory(prefix="hasten-") as folder:
        plan, out = Path(folder) / "hasten.toml", Path(folder) / "run"
        plan.write_text(plan_toml, encoding="utf-8")
        command = [sys.executable, "-m", "hasten", "run", target, "--plan", str(plan), "--out", str(out)]
        command += [] if updates is None else ["--updates", str(updates)]
        started = monotonic()
        done = subprocess.run(command, cwd=ROOT, check=False)
        seconds = monotonic() - started
        if done.returncode:
            raise RuntimeError(f"training {target} ended with exit code {done.returncode}")
        weights_of(target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(out / WEIGHTS, weights_of(target))
        curve = [
            {"update": report["update"], **report["held_out"]} for report in read_reports(out) if report.get("held_out")
        ]
    values = [point[metric] for point in curve if metric in point]
    if not values:
        raise RuntimeError(f"the run of {target} reported no validation {metric}")
    return {"metric": metric, "best": max(values), "last": values[-1], "seconds": seconds, "curve": curve}


def weights_of(target: str) -> Path:
    """Return the path of a job's trained weights."""
    return ROOT / "hasten-out" / target.rsplit(":", maxsplit=1)[-1] / WEIGHTS
