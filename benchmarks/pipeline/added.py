"""What is added to a stage: a chain of commands that do nothing, in a pipeline and one after another without it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from hasten.pipeline.control import history
from hasten.pipeline.description import read_pipeline

STAGES, TURNS = 5, 5
LIMIT_S = 5.0
"""What was measured of Dagster alone on two busy cores before: 3 to 5 s a step."""


def run(found: Mapping[str, Any]) -> dict[str, Any]:
    """Measure several runs of the chain; each run changes a setting of the first stage and what follows from it."""
    del found
    with tempfile.TemporaryDirectory(prefix="hasten-") as name:
        folder = Path(name)
        plain_s = []
        for turn in range(TURNS):
            stages = [_stage(number, turn) for number in range(STAGES)]
            (folder / "pipeline.toml").write_text("schema = 1\n" + "".join(stages), encoding="utf-8")
            run_pipeline(folder)
            began = time.perf_counter()
            for number in range(STAGES):
                subprocess.run([sys.executable, "-c", _code(number, turn), str(folder)], check=True)
            plain_s.append((time.perf_counter() - began) / STAGES)
        runs = history(read_pipeline(folder))
    stage_s = median(run["stage_s"] for run in runs)
    return {
        "stages": STAGES,
        "runs": [{key: run[key] for key in ("seconds", "start_s", "stage_s", "end_s")} for run in runs],
        "start_s": median(run["start_s"] for run in runs),
        "stage_s": stage_s,
        "end_s": median(run["end_s"] for run in runs),
        "plain_stage_s": plain_s,
        "goals": {"seconds added to a stage": {"goal": LIMIT_S, "seen": round(stage_s, 2), "reached": stage_s <= LIMIT_S}},
    }


def run_pipeline(folder: Path, *before: str, environ: Mapping[str, str] | None = None) -> None:
    """Run a pipeline by its command. `before`: words in front of it."""
    command = [*before, sys.executable, "-m", "hasten", "-q", "pipeline", "run", str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environ)


def _stage(number: int, turn: int) -> str:
    needs = f'needs = ["s{number - 1}"]\n' if number else ""
    return (
        f'[stages.s{number}]\n{needs}command = ["python", "-c", "{_code(number, turn)}", "{{out}}"]\ngives = ["x"]\n'
        f'cores = 1\nmemory = "100 MiB"\n'
    )


def _code(number: int, turn: int) -> str:
    return f"import sys; open(sys.argv[1] + '/x', 'w').write('{number} {turn}')"
