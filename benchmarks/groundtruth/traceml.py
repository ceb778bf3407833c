"""Compare TraceML with Hasten: run its command on the same scripts, and judge whether its answers are right.

Each script is run twice from start to end with `traceml run`: unchanged, as Hasten runs it; and with its training step
marked as TraceML's documentation asks (`traceml.init()`, and `traceml.trace_step(model)` around the work from `zero_grad` to
`optimizer.step`), which `marked.py` does while the script runs.

A category of TraceML counts as right if its own documentation says that it covers the bottleneck: the one category for
everything outside the traced phases covers logging, checkpoints, validation and all other work there. Statements about
memory count in any section.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.groundtruth.processes import wait
from benchmarks.groundtruth.truth import Case
from benchmarks.result_file import Row
from hasten.core.card import Bottleneck

MARKED = Path(__file__).with_name("marked.py")
LIMIT_S = 300.0
ARMS = ("plain", "marked")
IMPORTED = ("numpy", "sklearn", "torch")
"""Packages that the scripts import."""

CATEGORIES: Mapping[str, frozenset[Bottleneck]] = {
    "INPUT_BOUND": frozenset({Bottleneck.INPUT}),
    "INPUT_STRAGGLER": frozenset({Bottleneck.INPUT}),
    "H2D_BOUND": frozenset({Bottleneck.TRANSFER}),
    "H2D_STRAGGLER": frozenset({Bottleneck.TRANSFER}),
    "COMPUTE_BOUND": frozenset({Bottleneck.COMPUTE}),
    "COMPUTE_STRAGGLER": frozenset({Bottleneck.COMPUTE}),
    "RESIDUAL_HEAVY": frozenset({Bottleneck.LOGGING, Bottleneck.CHECKPOINT, Bottleneck.VALIDATION, Bottleneck.OTHER}),
    "NO_CLEAR_PERFORMANCE_BOTTLENECK": frozenset(),
}
"""Bottlenecks named by each answer. Answers not listed here name none: too little data, or a symptom without a cause."""
MEMORY = frozenset({"HIGH_PRESSURE", "CREEP_EARLY", "CREEP_CONFIRMED", "HIGH_PROCESS_RSS", "HIGH_HOST_MEMORY"})
NOTHING_WRONG = frozenset({"COMPUTE_BOUND", "NO_CLEAR_PERFORMANCE_BOTTLENECK"})


def traceml_part(command: Path, case: Case) -> Row:
    """Run a script with TraceML in both ways."""
    arms = {arm: run_traceml(command, case, marked=arm == "marked") for arm in ARMS}
    return {**arms, "version": version_of(command)}


def check_python(command: Path) -> None:
    """Check that the scripts can run beside TraceML: a script that cannot start would count against TraceML.

    Raises:
        SystemExit: The command or the Python beside it is missing, or that Python lacks a package that the scripts import.
    """
    python = command.parent / "python"
    for needed in (command, python):
        if not needed.exists():
            raise SystemExit(f"There is no file {needed}. Give the path of traceml in the environment that it is in.")
    try:
        subprocess.run([str(python), "-c", f"import {', '.join(IMPORTED)}"], check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        said = error.stderr.strip().splitlines()[-1]
        raise SystemExit(f"{python} cannot run the scripts: {said}. Install that package there.") from None


def version_of(command: Path) -> str:
    """Return the TraceML version of a command, as reported by the Python in the same folder."""
    asked = "from importlib.metadata import version; print(version('traceml-ai'))"
    try:
        done = subprocess.run([command.parent / "python", "-c", asked], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def run_traceml(command: Path, case: Case, *, marked: bool) -> Row:
    """Run a script with `traceml run`; return its answer, or why there is none."""
    script, words = (MARKED, [str(case.script)]) if marked else (case.script, [])
    words += ["--steps", str(case.steps)]
    started = perf_counter()
    with tempfile.TemporaryDirectory(prefix="traceml-") as name:
        folder = Path(name)
        with tempfile.TemporaryFile("w+", errors="replace") as said:
            process = subprocess.Popen(
                arguments(command, script, words, folder),
                cwd=folder, env=environment(), stdout=said, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            code = wait(process, LIMIT_S)
            said.seek(0)
            last = said.read()[-300:]
        path = folder / "run" / "final_summary.json"
        seconds = perf_counter() - started
        if code != 0 or not path.exists():
            why = f"not finished within {LIMIT_S:.0f} s" if code is None else f"exit code {code}: {last.strip()}"
            return {"kind": None, "why": why, "seconds": seconds}
        return {**read_summary(json.loads(path.read_text(encoding="utf-8"))), "seconds": seconds}


def arguments(command: Path, script: Path, words: list[str], folder: Path) -> list[str]:
    """Return the command line, with separate ports so that several may run."""
    ports = ["--aggregator-port", str(free_port()), "--master-port", str(free_port())]
    return [str(command), "run", str(script), "--logs-dir", str(folder), "--run-name", "run", *ports, "--args", *words]


def environment() -> dict[str, str]:
    """Return this process's environment without variables that tell TraceML's processes where to connect."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TRACEML_")}


def free_port() -> int:
    """Return a port that is currently unused."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def read_summary(summary: Mapping[str, Any]) -> Row:
    """Read TraceML's final summary: its verdict, and its statements about memory."""
    found = summary["primary_diagnosis"]
    sections = (summary.get(name) or {} for name in ("system", "process", "step_memory"))
    issues = [issue["kind"] for section in sections for issue in section.get("issues") or ()]
    return {
        "kind": found["kind"],
        "status": found["status"],
        "severity": found["severity"],
        "summary": found["summary"],
        "steps": (found.get("evidence") or {}).get("steps_analyzed"),
        "phase": ((summary.get("step_time") or {}).get("diagnosis") or {}).get("phase"),
        "memory": sorted(MEMORY & set(issues)),
        "schema": summary.get("schema_version"),
    }


def judge_traceml(case: Case, part: Mapping[str, Any]) -> Row:
    """Return both arms with `answered` and `right`."""
    return {arm: {**part[arm], **judge_answer(case, part[arm])} for arm in ARMS if arm in part}


def judge_answer(case: Case, answer: Mapping[str, Any]) -> Row:
    """Judge whether TraceML gave an answer, and whether it is right.

    An answer is right if its category covers the bottleneck, or, for a clean script, if it reports no problem.
    """
    kind = answer["kind"]
    if case.clean:
        return {"answered": kind in CATEGORIES, "right": kind in NOTHING_WRONG}
    named = set(CATEGORIES.get(kind, ())) | ({Bottleneck.MEMORY} if answer.get("memory") else set())
    if kind == "COMPUTE_BOUND" and answer.get("phase") == "optimizer":
        named.add(Bottleneck.OPTIMIZER)
    return {"answered": kind in CATEGORIES or bool(answer.get("memory")), "right": bool(named & set(case.bottleneck))}


def traceml_score(rows: list[Row]) -> Row | None:
    """Count TraceML's right answers by arm; None if it was not run."""
    ran = [row for row in rows if row["traceml"]]
    if not ran:
        return None
    found: Row = {"versions": sorted({row["traceml"].get("version", "unknown") for row in ran})}
    for arm in ARMS:
        injected = [row["traceml"][arm] for row in ran if not row["clean"]]
        clean = [row["traceml"][arm] for row in ran if row["clean"]]
        found[arm] = {
            "injected": len(injected),
            "answered": sum(answer["answered"] for answer in injected),
            "right": sum(answer["right"] for answer in injected),
            "clean": len(clean),
            "clean_answered": sum(answer["answered"] for answer in clean),
            "clean_false_alarms": sum(answer["answered"] and not answer["right"] for answer in clean),
        }
    return found
