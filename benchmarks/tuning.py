"""Tune the example jobs and the diagnosis jobs like a user, and record the evidence."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.record import RESULTS, ROOT, record

GOALS = {"text": 5.5, "image": 2.0}
"""Smallest accepted lower end of the interval."""

EXAMPLES = {"text": "examples/text.py:TextJob", "image": "examples/image.py:DigitsJob"}
DIAGNOSIS = {
    "cancellation": "examples/diagnosis/cancellation.py:CancellationJob",
    "slow_reader": "examples/diagnosis/slow_reader.py:SlowReaderJob",
    "tight": "examples/diagnosis/tight.py:TightJob",
}


def run_example(name: str, budget: str = "10m", seed: int | None = None) -> Path:
    """Tune an example; record the evidence and the report's numbers, and whether the goal was reached."""
    evidence = tuned(EXAMPLES[name], budget, seed)
    final = evidence["final"] or {}
    quality = (final.get("quality") or {}).get("verdict")
    reached = (final.get("low") or 0.0) >= GOALS[name] and quality == "not_worse"
    result = {"goal_low": GOALS[name], "reached": reached, "evidence": evidence}
    return record(
        f"tune_{name}",
        result,
        f"python -m benchmarks {name} --budget {budget}" + ("" if seed is None else f" --seed {seed}"),
    )


def run_diagnosis(budget: str = "3m") -> Path:
    """Tune the three jobs with a known bottleneck."""
    result = {name: tuned(target, budget) for name, target in DIAGNOSIS.items()}
    return record("tune_diagnosis", result, f"python -m benchmarks diagnosis --budget {budget}")


def tuned(
    target: str, budget: str, seed: int | None = None, *, without: Sequence[str] = (), begun: Path | None = None
) -> dict[str, Any]:
    """Run `hasten tune` in a separate process and return its evidence; the report is stored with the results.

    Args:
        target: The job.
        budget: Budget of the tuning.
        seed: Seed of the experiment.
        without: Techniques to exclude.
        begun: Folder of an interrupted tuning of the same job, which is resumed.
    """
    with tempfile.TemporaryDirectory(prefix="hasten-") as folder:
        command = [sys.executable, "-m", "hasten", "tune", target, "--budget", budget, "--out", folder]
        command += [] if seed is None else ["--seed", str(seed)]
        command += [word for name in without for word in ("--without", name)]
        if begun is not None:
            shutil.copytree(begun, folder, dirs_exist_ok=True)
            command.append("--resume")
        subprocess.run(command, cwd=ROOT, check=True)
        evidence: dict[str, Any] = json.loads((Path(folder) / "evidence.json").read_text(encoding="utf-8"))
        out = ROOT / "hasten-out" / target.rsplit(":", maxsplit=1)[-1]
        out.mkdir(parents=True, exist_ok=True)
        for name in ("report.html", "evidence.json", "hasten.toml"):
            shutil.copy(Path(folder) / name, out / name)
    evidence["commands"] = [line.replace(folder, "hasten-out") for line in evidence["commands"]]
    return evidence


def results() -> dict[str, Any]:
    """Return all recorded results: name -> content."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))}
