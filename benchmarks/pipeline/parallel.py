"""The example: its branches side by side and, on one core, one after another. Predicted and real time of each run."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.pipeline.added import run_pipeline
from benchmarks.record import ROOT
from hasten.pipeline.control import history
from hasten.pipeline.description import read_pipeline

TURNS = 3
WITHIN = 0.15
"""Largest relative error of the prediction that is accepted."""


def run(found: Mapping[str, Any]) -> dict[str, Any]:
    """Run the whole example in turns. A setting of each stage is changed each time, so that it runs again."""
    del found
    with tempfile.TemporaryDirectory(prefix="hasten-") as name:
        folder = Path(shutil.copytree(ROOT / "examples" / "pipeline", Path(name) / "example"))
        shutil.rmtree(folder / "hasten-pipeline", ignore_errors=True)
        text = (folder / "pipeline.toml").read_text(encoding="utf-8")
        environ = {**os.environ, "HASTEN_LEASES": str(Path(name) / "leases")}
        cores = sorted(os.sched_getaffinity(0))[:2]
        forms = ["parallel", *(form for _ in range(TURNS) for form in ("sequential", "parallel"))]  # the first one measures
        for turn, form in enumerate(forms):
            changed = text.replace("env = {", f"env = {{ TURN = {turn},")
            for stage in ("corpus", "joined", "check"):  # what a stage gives is the same, so each has to change by itself
                changed = changed.replace(f"[stages.{stage}]\n", f"[stages.{stage}]\nenv = {{ TURN = {turn} }}\n")
            (folder / "pipeline.toml").write_text(changed, encoding="utf-8")
            used = cores if form == "parallel" else cores[:1]
            run_pipeline(folder, "taskset", "-c", ",".join(map(str, used)), environ=environ)
        runs = [{"form": form, **run} for form, run in zip(forms, history(read_pipeline(folder)), strict=True)][1:]
    for one in runs:
        one["error_frac"] = one["predicted_s"] / one["seconds"] - 1
    times = {form: median(one["seconds"] for one in runs if one["form"] == form) for form in ("sequential", "parallel")}
    errors = {form: median(abs(one["error_frac"]) for one in runs if one["form"] == form) for form in times}
    worst = max(errors.values())
    return {
        "runs": runs,
        "seconds": times,
        "gain": times["sequential"] / times["parallel"],
        "median_error_frac": errors,
        "goals": {"relative error of the prediction": {"goal": WITHIN, "seen": round(worst, 3), "reached": worst <= WITHIN}},
    }
