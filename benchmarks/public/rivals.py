"""What other tuners and profilers find in a script, gain, and break; each unchanged, through its command line.

train-doctor attaches to an unmodified script; the patch that it proves is timed over whole runs, as Hasten's is. TraceML
only diagnoses; where it has no answer, it gets the script's steps marked, as its documentation asks. loadtune wants a
workload file that builds dataset, model and step; pytorch-autotune wants to be called from the script, and a GPU: loadtune
is started anyway, and its words are recorded.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.groundtruth.traceml import CATEGORIES, MARKED, read_summary
from benchmarks.groundtruth.traceml import arguments as traceml_arguments
from benchmarks.public.cases import Case
from benchmarks.public.processes import OVER_TIME, Ended, fresh, last_words, start
from benchmarks.public.whole import ROUNDS, time_patch

LIMIT_S = 600.0
"""Of each rival: as long as a tuning by Hasten may take."""
PACKAGES = {
    "train_doctor": "train-doctor", "traceml": "traceml-ai", "loadtune": "loadtune", "autotune": "pytorch-autotune",
}  # fmt: skip

Row = dict[str, Any]


def measure_rivals(case: Case, python: str, template: Path, rounds: int = ROUNDS) -> Row:
    """Start each rival on a script; return what each says, by name, and whole runs with a patch."""
    ways = {"train_doctor": train_doctor, "traceml": traceml, "loadtune": loadtune, "autotune": autotune}
    found: Row = {}
    for name, way in ways.items():
        version = version_of(python, PACKAGES[name])
        if not version:
            found[name] = {"version": None, "outcome": "does not install", "says": [], "gain": None}
            continue
        found[name] = {"version": version, **way(case, python, template)}
        if patch := found[name].get("patch"):
            found[name]["whole"] = time_patch(case, python, template, patch, rounds)
    return {"why": "", "found": found}


def version_of(python: str, package: str) -> str:
    """Return the version of a package in an environment; empty if it is not installed."""
    asked = f"from importlib.metadata import version; print(version({package!r}))"
    done = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def train_doctor(case: Case, python: str, template: Path) -> Row:
    """Return the verdict of `train-doctor fix`, the gain it proves, and its patch."""
    work = _fresh(template)
    command = [str(Path(python).with_name("train-doctor")), "fix", "--no-card", "--quiet", "--", python, *_script(case)]
    done = start(command, case, work, LIMIT_S)
    patches = sorted((work / case.folder).glob(".train-doctor/**/*.patch"))
    gain = re.search(r"([\d.]+)x faster", done.out)
    return {
        "outcome": _outcome(done),
        "says": [line for line in done.out.splitlines() if line.strip() and not line.startswith("fix report:")],
        "gain": float(gain[1]) if gain else None,
        "patch": patches[-1].read_text(encoding="utf-8") if patches else "",
        "seconds": done.wall_s,
    }


def traceml(case: Case, python: str, template: Path) -> Row:
    """Return the diagnosis of `traceml run`, and what the script's own exit code became."""
    alone = _traceml(case, python, template, marked=False)
    if alone["kind"] in CATEGORIES:
        return alone
    return {**_traceml(case, python, template, marked=True), "unmarked": alone}


def _traceml(case: Case, python: str, template: Path, *, marked: bool) -> Row:
    work = _fresh(template)
    logs = work / "traceml-logs"
    script, *words = [str(MARKED), *_script(case)] if marked else _script(case)
    command = traceml_arguments(Path(python).with_name("traceml"), Path(script), words, logs)
    done = start(command, case, work, LIMIT_S)
    summary = logs / "run" / "final_summary.json"
    read = read_summary(json.loads(summary.read_text(encoding="utf-8"))) if summary.exists() else {}
    says = [f"{read['kind']}: {read['summary']}"] if read else []
    told = {"outcome": _outcome(done), "says": says, "gain": None, "seconds": done.wall_s}
    return {**told, "kind": read.get("kind"), "marked": marked}


def loadtune(case: Case, python: str, template: Path) -> Row:
    """Return the words of `loadtune profile` on the script itself."""
    command = [str(Path(python).with_name("loadtune")), "profile", case.script]
    done = start(command, case, _fresh(template), LIMIT_S)
    errors = re.findall(r"\\n(?:_trial\.py: )?(\w*[Ee]rror: [^\\\"{]+)", done.out + done.errors)  # in a JSON string
    outcome = f"exit code {done.code}: {errors[-1]}" if done.code and errors else _outcome(done)
    return {"outcome": outcome, "says": [], "gain": None, "seconds": done.wall_s}


def autotune(_case: Case, _python: str, _template: Path) -> Row:
    """Return that it cannot be started: it has no command line."""
    return {
        "outcome": "cannot be started on a script",
        "says": ["it is a function to call, and tunes GPUs only"],
        "gain": None,
    }


def _fresh(template: Path) -> Path:
    return fresh(template, template.parent / "run")


def _script(case: Case) -> list[str]:
    return [case.script, *case.arguments, *case.shorter]


def _outcome(done: Ended) -> str:
    if done.code == OVER_TIME:
        return f"ended after {LIMIT_S:.0f} s"
    return (
        "ended" if done.code == 0 else f"exit code {done.code}: {last_words((done.out + done.errors).splitlines()[-100:])}"
    )
