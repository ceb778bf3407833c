"""The result of the recipes: its numbers, the goals they reach, and the generated tables."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.recipes import marginal, table
from benchmarks.recipes.run import figures
from benchmarks.record import ROOT
from benchmarks.tuning import results

JOBS = ROOT / "benchmarks" / "recipes" / "jobs"


def interval(ratio: float) -> dict[str, float]:
    return {"ratio": ratio, "low": ratio - 0.1, "high": ratio + 0.1}


def tuned(low: float | None) -> dict[str, Any]:
    quality = {"metric": "map50", "baseline": 0.5, "tuned": 0.51, "verdict": "not_worse", "margin": 0.02}
    final = None if low is None else {"ratio": low + 0.1, "low": low, "high": low + 0.2, "pairs": 5, "quality": quality}
    seen = {"ratio": 1.5, "low": 1.4, "high": 1.6}
    rungs = [
        {"name": "channels_last", "settings": {}, "outcome": "applied", "reason": "faster | much", "comparison": seen},
        {"name": "compile", "settings": {}, "outcome": "refused", "reason": "no", "comparison": None},
    ]
    return {"target": "a.py:A", "budget": "30m", "evidence": {"final": final, "rungs": rungs, "plan_toml": ""}}


def found() -> dict[str, Any]:
    """Return parts as recorded by the benchmark, with invented numbers."""
    metrics = {"postprocess_ms": 3.0, "metric_ms": 1.0, "polygon_ms": 0.25}
    turns = {form: {"turns": [{"metrics": metrics}]} for form in ("naive", "real")}
    arm = {**interval(1.2), "hasten_over_it": 2.0, "hasten_over_it_low": 1.9, "hasten_over_it_high": 2.1}
    case = {"ratios": {"exact": 20.0}, "median_ms": {"official": 80.0}}
    goals = {"exact_quads": {"seen": 20.0}}
    return {
        "detection-train": tuned(2.6),
        "ocr-train": tuned(1.8),
        "ocr-valid": {
            "valid_gain": interval(9.0), "valid_over_train": {"naive": interval(1.2), "real": interval(0.3)}, "rows": [turns]
        },
        "maps": {
            "size": [640, 640], "cases": {"quads_60": case}, "goals": goals, "doctr": None,
        },
        "detection-learn": {"metric": "map50", "best": 0.85, "last": 0.84, "seconds": 480.0, "curve": []},
        "ocr-rivals": {"arms": {"naive": arm, "Hasten": arm}},
    }  # fmt: skip


def test_figures_are_of_the_parts_that_were_measured_and_goals_of_the_figures() -> None:
    seen = figures(found())
    assert seen["detection_train_low"] == 2.6
    assert seen["ocr_valid_low"] == pytest.approx(8.9)
    assert seen["ocr_valid_over_train"] == 0.3
    assert seen["ocr_hmean"] is None
    assert seen["reached"] == {
        "detection_train_low": True, "ocr_train_low": False, "ocr_valid_low": True, "ocr_valid_over_train": True,
        "detection_map50": True, "ocr_maps_exact": True,
    }  # fmt: skip
    assert figures({"ocr-train": tuned(None)})["ocr_train_low"] == 0


def test_the_tables_tell_each_part_and_a_goal_that_was_missed() -> None:
    parts = found()
    result = {**figures(parts), "parts": parts, "machine": "a machine", "command": "python -m benchmarks recipes"}
    assert "OCR training 1.80x at the lower end (goal 1.9: missed)" in table.headline(result)
    assert "detection 2.60x at the lower end;" in table.headline(result)
    detection, ocr = table.detection(result), table.ocr(result)
    assert "held-out map50 0.850 at its best" in detection
    assert "| channels_last | applied | 1.50x (1.40 to 1.60) | channels_last: faster \\| much |" in detection
    assert "9.00x (8.90 to 9.10)" in ocr
    assert "| `channels_last` | applied | 1.50x (1.40 to 1.60) |" in ocr
    assert "compile" not in ocr  # it was not measured
    assert "| 60, 4 | 80.0 | 20.0x |" in ocr
    assert "docTR" not in ocr
    assert "| naive | 1.20x (1.10 to 1.30) | 2.00x (1.90 to 2.10) |" in ocr
    nothing = {**figures({}), "parts": {}, "machine": "a machine", "command": "python -m benchmarks recipes"}
    assert "|" not in table.detection(nothing) + table.ocr(nothing)


def test_a_page_without_measurements_says_so() -> None:
    result = {**figures({}), "machine": "a machine", "command": "measure", "parts": {"maps": found()["maps"]}}
    assert table.detection(result) == "\nNot measured yet: `measure`.\n"
    assert "On a machine. Repeat it: `measure`." in table.ocr(result)


def test_parts_of_another_machine_stand_under_its_name() -> None:
    parts = found()
    parts["ocr-valid"]["where"] = {"machine": "another one"}
    result = {**figures(parts), "machine": "a machine", "command": "measure", "parts": parts}
    page = table.ocr(result)
    assert page.index("On a machine") < page.index("Tuning the naive form")
    assert page.index("On another one") < page.index("| validation pass |") < page.rindex("On a machine")
    assert page.rindex("On a machine") < page.index("Target maps at")
    assert "another one" not in table.detection(result)
    assert table.headline(result).endswith("exact target maps 20x; on another one: OCR validation 8.90x")


def test_what_the_pieces_brought_follows_from_the_recorded_samples() -> None:
    recorded = results()["pruning_ocr"]
    assert marginal.table(recorded["samples"], recorded["pieces"]) == recorded["rows"]
    page = table.pruned(recorded)
    for row in recorded["rows"]:
        assert f"| {row['what']} | {row['lines']} |" in page
    kept = {row["piece"] for row in recorded["rows"] if row["decision"] == "stays"}
    assert kept <= marginal.PIECES.keys()


@pytest.mark.parametrize("target", ["bccd.py:NaiveBccdJob", "sroie.py:NaiveSroieJob"])
def test_a_job_file_loads_by_its_path_from_any_folder(target: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    code = f"from hasten.core.target import load_job; print(load_job({str(JOBS / target)!r}).batch_size)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0
