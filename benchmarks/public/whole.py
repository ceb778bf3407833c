"""Time whole runs of a script: plain, under an empty plan, under its plan, and with the patch, in turns; compare the output.

Every run starts from a new copy of the same files in the same folder. Of three rounds, the second is in reverse order. The
ratio of a round is plain time by other time; the result is the geometric mean, with the smallest and the largest. An empty
plan lets a run start and end sooner: the difference to it is what techniques save, and what a patch could save.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from benchmarks.public.cases import Case
from benchmarks.public.output import compare
from benchmarks.public.processes import OVER_TIME, Ended, fresh, last_words, start

ROUNDS = 3
LIMIT_S = 400.0
EMPTY, PLAN, PATCH = "empty.toml", "hasten.toml", "hasten.patch"
SEEDED = {"PYTHONHASHSEED": "0"}
"""Otherwise what a script prints could depend on the order of a set of strings, which differs between two plain runs."""
CLOSE = 0.05
"""Median relative difference of printed numbers, at most, for a run under a plan that changes arithmetic."""

Row = dict[str, Any]


def measure_whole(case: Case, python: str, template: Path, tuned: Mapping[str, Any] | None, rounds: int = ROUNDS) -> Row:
    """Run a script plainly, under Hasten without a plan, under an empty plan, under its plan and with its patch.

    Args:
        case: The script.
        python: Interpreter.
        template: Prepared files; they stay as they are.
        tuned: The result of the tuning, with the plan's text, and its patch with the variables that no source can set
            (`patch_variables`) and the folder to apply it in, relative to the files (`patch_folder`); None if there is none.
        rounds: Number of rounds.

    Returns:
        `why` if the plain script fails, else `found`: the runs, and for `alone` (Hasten without a plan), `empty`, `plan` and
        `patch` what differs. A plan that is empty, and a patch that does not exist, have None.
    """
    commands = {"plain": [python, case.script], "alone": _hasten(python, case)}
    plan = tuned and tuned["plan"] and tuned.get("plan_text")
    patch = tuned and tuned.get("patch_text")
    variables_of_patch = tuned.get("patch_variables", {}) if tuned and plan else {}
    folder = tuned.get("patch_folder", case.folder) if tuned else case.folder
    if tuned:
        (template / EMPTY).write_text("schema = 1\n", encoding="utf-8")
        commands["empty"] = _hasten(python, case, template.parent / "run" / EMPTY)
    if plan:
        (template / PLAN).write_text(plan, encoding="utf-8")
        commands["plan"] = _hasten(python, case, template.parent / "run" / PLAN)
    if patch:
        (template / PATCH).write_text(patch, encoding="utf-8")
    if patch or variables_of_patch:  # what no source can set may be all that a plan needs
        commands["patch"] = commands["plain"]
    arms = [arm for arm in commands if arm != "alone"]
    runs: dict[str, list[Ended]] = {arm: [] for arm in commands}
    refused = ""
    for number in range(rounds if len(arms) > 1 else 2):
        for arm in arms if number % 2 == 0 else arms[::-1]:
            work = fresh(template, template.parent / "run")
            if arm == "patch" and patch and (refused := _apply(work / folder, work / PATCH)):
                continue
            variables = SEEDED | (variables_of_patch if arm == "patch" else {})
            runs[arm].append(start([*commands[arm], *case.arguments, *case.shorter], case, work, LIMIT_S, **variables))
            if runs["plain"] and runs["plain"][0].code:
                return {"why": f"the script alone {_failure(runs['plain'][0])}", "found": None}
        if number == 0:
            work = fresh(template, template.parent / "run")
            runs["alone"].append(start([*commands["alone"], *case.arguments, *case.shorter], case, work, LIMIT_S, **SEEDED))
    plain = runs["plain"]
    found: Row = {
        "arms": {arm: [summary(run) for run in each] for arm, each in runs.items()},
        "alone": judge(plain, runs["alone"]),
        "empty": judge(plain, runs["empty"]) if tuned else None,
        "plan": judge(plain, runs["plan"]) if plan else None,
        "patch": judge(plain, runs["patch"]) if runs.get("patch") and not refused else None,
        "patch_refused": refused,
        "patch_left": tuned.get("patch_left", {}) if tuned else {},
        "patch_variables": variables_of_patch,
    }
    return {"why": "", "found": found}


def time_patch(case: Case, python: str, template: Path, patch: str, rounds: int = ROUNDS) -> Row:
    """Time whole runs of a script alone and with a patch of somebody else, in turns; return `refused`, or what differs."""
    (template / PATCH).write_text(patch, encoding="utf-8")
    plain: list[Ended] = []
    patched: list[Ended] = []
    for number in range(rounds):
        for runs in (plain, patched) if number % 2 == 0 else (patched, plain):
            work = fresh(template, template.parent / "run")
            if runs is patched and (refused := _apply(work / case.folder, work / PATCH)):
                return {"refused": refused}
            runs.append(start([python, case.script, *case.arguments, *case.shorter], case, work, LIMIT_S, **SEEDED))
    arms = {"plain": [summary(run) for run in plain], "patch": [summary(run) for run in patched]}
    return {"refused": "", "arms": arms, **judge(plain, patched)}


def judge(plain: Sequence[Ended], others: Sequence[Ended]) -> Row:
    """Compare runs with the plain ones: exit codes, output, and times.

    `same` means the same exit code, the same lines, and the same numbers; `close` allows other numbers, by the median.
    """
    compared = [compare([run.out for run in plain], other.out) for other in others]
    failures = [_failure(run) for run in others if run.code != plain[0].code]
    printed = [run for run in compared if run["missing"]]
    typical = max((run["typical"] or 0.0 for run in compared), default=0.0)
    equal = all(run["equal"] == run["numbers"] for run in compared)
    ratios = [a.wall_s / b.wall_s for a, b in zip(plain, others, strict=False)]
    return {
        "same": not failures and not printed and equal,
        "close": not failures and not printed and (equal or typical <= CLOSE),
        "failures": failures,
        "output": compared,
        "said": [line for line in others[0].errors.splitlines() if "hasten" in line.lower()][:5],
        "ratio": geometric_mean(ratios),
        "low": min(ratios),
        "high": max(ratios),
        "wall_s": median(run.wall_s for run in others),
    }


def summary(run: Ended) -> Row:
    """Return what is recorded of a run."""
    return {"code": run.code, "wall_s": run.wall_s, "cpu_s": run.cpu_s}


def _hasten(python: str, case: Case, plan: Path | None = None) -> list[str]:
    return [python, "-P", "-m", "hasten", "run", *(["--plan", str(plan)] if plan else []), case.script, "--"]


def _apply(folder: Path, patch: Path) -> str:
    """Apply a patch in a folder; return why not, or an empty string."""
    command = ["git", "apply", str(patch)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.stderr.strip() if done.returncode else ""


def _failure(run: Ended) -> str:
    if run.code == OVER_TIME:
        return f"did not end within {LIMIT_S:.0f} s"
    return f"ended with {run.code}: {last_words((run.out + run.errors).splitlines()[-200:])}"
