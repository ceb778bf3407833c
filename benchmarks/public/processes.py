"""Run a command on a copy of a script's files: exit code, wall time, processor time, and what it printed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from benchmarks.groundtruth.processes import end_tree
from benchmarks.public.cases import Case

OVER_TIME = 124
"""Exit code that is reported for a command ended at its limit."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A finished command.

    Attributes:
        code: Exit code; 124 if it was ended at its limit.
        wall_s: Wall time from the start to the end of the process, in seconds.
        cpu_s: Processor time of it and of all processes it waited for, in seconds.
        out: What it printed to standard output.
        errors: What it printed to standard error.
    """

    code: int
    wall_s: float
    cpu_s: float
    out: str
    errors: str


def start(command: Sequence[str], case: Case, work: Path, limit_s: float, **variables: str) -> Ended:
    """Run a command in the script's folder with its environment and `variables`; end it and its children at the limit."""
    folder = work / case.folder
    with tempfile.TemporaryFile("w+", errors="replace") as out, tempfile.TemporaryFile("w+", errors="replace") as errors:
        started = perf_counter()
        process = subprocess.Popen(
            command, cwd=folder, env=environment(case, work) | variables, stdin=subprocess.DEVNULL, stdout=out,
            stderr=errors, start_new_session=True,
        )  # fmt: skip
        before = os.times()
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            end_tree(process.pid)
            process.wait()
            code = OVER_TIME
        wall_s, after = perf_counter() - started, os.times()
        out.seek(0)
        errors.seek(0)
        cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
        return Ended(code=code, wall_s=wall_s, cpu_s=cpu_s, out=out.read(), errors=errors.read())


def environment(case: Case, work: Path) -> dict[str, str]:
    """Return the variables to start a script with: those of this process, wide output, PYTHONPATH, and the script's own."""
    folder = work / case.folder
    path = [str((folder / entry).resolve()) for entry in case.path]
    path += [entry for entry in [os.environ.get("PYTHONPATH")] if entry]
    own = {name: str(folder / value[2:]) if value.startswith("./") else value for name, value in case.environment.items()}
    made = {**os.environ, "COLUMNS": "1000", "NO_COLOR": "1", **own, "PYTHONPATH": os.pathsep.join(path)}
    left_out = {"PYTHONDONTWRITEBYTECODE", *(() if path else ("PYTHONPATH",))}
    return {name: value for name, value in made.items() if name not in left_out}


def fresh(template: Path, place: Path) -> Path:
    """Replace a folder by a copy of another, so that no run sees what an earlier one wrote."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(template, place, symlinks=True)
    return place


def last_words(lines: Sequence[str]) -> str:
    """Return the last line of a failed command's output, and the script's error before it, if any."""
    worth = [line.strip(" │\n") for line in lines if any(sign.isalnum() for sign in line)]
    if not worth:
        return "it printed nothing"
    errors = [line for line in worth[:-1] if re.match(r"[\w.]*(Error|Exception|Interrupt)\b", line)]
    return f"{worth[-1]} ({errors[-1]})" if errors else worth[-1]
