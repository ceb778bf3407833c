"""Measure the public scripts through the command line, each unchanged, on a copy of the files it needs.

`python -m benchmarks public --sources DIR [--part PART ...] [--only NAME ...] [--budget 10m] [--python PATH]`. DIR contains
clones of the repositories. PATH is an interpreter with Hasten and the packages that the scripts import. The data of some is
made with these packages, so it is best to start the benchmark with PATH too. Rows are written as they are measured. What was
measured at the current commit is skipped; with `--keep-any`, at any commit.

profile   `hasten profile`
cprofile  the functions in which most time goes, to check the diagnosis by hand: judged.toml
tune      `hasten tune`
whole     whole runs: plain, under Hasten without a plan, under the plan, and with the patch, in turns
rivals    other tuners on the same script
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.public.cases import Case, load_cases
from benchmarks.public.makers import MAKERS
from benchmarks.public.processes import OVER_TIME, last_words, start
from benchmarks.public.rivals import measure_rivals
from benchmarks.public.truth import cprofile_part
from benchmarks.public.verdict import Row, found, judge_tuning, load_judged, score
from benchmarks.public.whole import ROUNDS, measure_whole
from benchmarks.record import ROOT
from benchmarks.result_file import ResultFile
from hasten.cli.say import parse_duration
from hasten.core.errors import TargetError
from hasten.core.optimization import required_environment
from hasten.core.plan import Plan
from hasten.optimizations import catalogue
from hasten.script.patch import suggest

NAME = "public"
PARTS = ("profile", "cprofile", "tune", "whole", "rivals")
BUDGET = "10m"
PROFILE_LIMIT_S = 600.0
TUNE_SLACK_S = 600.0


@dataclass(frozen=True, kw_only=True)
class PublicRun:
    """What to run, and how.

    Attributes:
        sources: Folder of the clones.
        budget: Budget of each tuning.
        parts: Parts to measure; other parts of a row stay.
        python: Interpreter with Hasten and the packages that the scripts import.
        again: Repeat what was measured at the current commit.
        keep_any: Skip what was measured at any commit of Hasten.
        rounds: Rounds of whole runs.
    """

    sources: Path
    budget: str = BUDGET
    parts: Sequence[str] = PARTS
    python: str = sys.executable
    again: bool = False
    keep_any: bool = False
    rounds: int = ROUNDS


def main(words: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks public", description=__doc__)
    parser.add_argument("--sources", type=Path, required=True, metavar="DIR", help="clones, named like their repositories")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these scripts; rows of others stay")
    parser.add_argument("--part", nargs="+", choices=PARTS, default=PARTS, help="only these parts; others stay")
    parser.add_argument("--budget", default=BUDGET, help="budget of each tuning")
    parser.add_argument(
        "--python", default=sys.executable, metavar="PATH", help="Python with Hasten and the scripts' packages"
    )
    parser.add_argument("--again", action="store_true", help="repeat what was measured at this commit")
    parser.add_argument("--keep-any", action="store_true", help="skip what was measured at any commit of Hasten")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of whole runs")
    asked = parser.parse_args(words)
    run = PublicRun(
        sources=asked.sources, budget=asked.budget, parts=asked.part, python=asked.python, again=asked.again,
        keep_any=asked.keep_any, rounds=asked.rounds,
    )  # fmt: skip
    results = ResultFile(NAME, f"python -m benchmarks public --sources DIR --budget {run.budget}", whole)
    cases = load_cases(asked.only)
    run_public(results, {name: cases[name] for name in asked.only or cases}, run)
    print(f"wrote {results.path}", flush=True)


def whole(rows: Mapping[str, Row], _beside: Row) -> Row:
    """Assemble the result: how many scripts became faster, and all rows in the order of scripts.toml."""
    judged = load_judged()
    listed = [
        {**about(case), **rows[name], **({"judged": judged[name]} if name in judged else {})}
        for name, case in load_cases().items()
        if name in rows
    ]
    return {**score(listed), "rows": listed}


def about(case: Case) -> Row:
    """Return the description of a script, the start of every row."""
    made = (MAKERS[case.maker].__doc__ or "").partition("\n")[0] if case.maker else ""
    return {
        "name": case.name,
        "repository": case.repository,
        "licence": case.licence,
        "field": case.field,
        "loader": case.loader,
        "unseen": case.unseen,
        "varies": case.varies,
        "about": case.about,
        "script": (Path(case.folder) / case.script).as_posix(),
        "folder": case.folder,
        "path": list(case.path),
        "arguments": list(case.arguments),
        "shorter": list(case.shorter),
        "command": shlex.join(["python", case.script, *case.arguments]),
        "changed": list(case.changed),
        "data": made,
    }


def run_public(results: ResultFile, cases: Mapping[str, Case], run: PublicRun) -> None:
    """Measure each missing part of each script, and print the outcome. All parts of a script come before the next."""
    for case in cases.values():
        check_clone(case, run.sources)
    for name, case in cases.items():
        commit = _git(run.sources / case.clone, "rev-parse", "HEAD").strip()
        for part in run.parts:
            row = results.rows.get(name, {})
            if is_done(results, row, part, commit, run):
                continue
            started = perf_counter()
            measured = run_part(case, part, run, row)
            results.put(name, part, {**measured, "seconds": perf_counter() - started, "of": commit})
            print(f"{part:<9}{name:<24}{told(part, measured)}", flush=True)


def is_done(results: ResultFile, row: Row, part: str, commit: str, run: PublicRun) -> bool:
    """Return whether a part was measured, and need not be again. Whole runs are repeated after another tuning."""
    before = row.get(part)
    if not before or run.again or before["of"] != commit or not (run.keep_any or results.fresh(before)):
        return False
    return part != "whole" or before.get("plan") == (found(row, "tune") or {}).get("plan")


def told(part: str, measured: Row) -> str:
    """Summarize the outcome of a part in one line."""
    if measured["why"]:
        return f"failed: {measured['why']}"
    result = measured["found"]
    match part:
        case "profile":
            return str(result["bottleneck"]["words"])
        case "tune":
            return str(result["words"])
        case "cprofile":
            return ", ".join(f"{row['function']} {row['own']:.0%}" for row in result["own"][:3])
        case "whole":
            arms = {arm: result[arm] for arm in ("alone", "empty", "plan", "patch") if result.get(arm)}
            seconds = result["arms"]["plain"][-1]["wall_s"]
            return f"plain {seconds:.1f} s, " + ", ".join(
                f"{arm} {row['ratio']:.2f}x ({row['low']:.2f} to {row['high']:.2f}, "
                f"{'same' if row['same'] else 'close' if row['close'] else 'DIFFERENT'})"
                for arm, row in arms.items()
            )
        case _:
            return "; ".join(f"{name}: {' '.join([rival['outcome'], *rival['says'][:1]])}" for name, rival in result.items())


def run_part(case: Case, part: str, run: PublicRun, row: Row) -> Row:
    """Measure one part of a script in a separate copy; return the result, or why there is none."""
    with tempfile.TemporaryDirectory(prefix="public-") as name:
        work = Path(name).resolve() / "files"
        copy_sources(case, run.sources, work)
        if case.maker:
            into = (work / case.folder / case.into).resolve()
            into.mkdir(parents=True, exist_ok=True)
            MAKERS[case.maker](into)
        match part:
            case "profile":
                return profile_part(case, run, work)
            case "cprofile":
                return cprofile_part(case, run.python, work)
            case "tune":
                return tune_part(case, run, work)
            case "whole":
                return whole_part(case, run, work, row)
            case _:
                measured = measure_rivals(case, run.python, work, run.rounds)
                told: Row = json.loads(shortened(json.dumps(measured), run, work.parent / "run"))
                return told


def check_clone(case: Case, sources: Path) -> Path:
    """Return the clone that a script comes from.

    Raises:
        TargetError: It does not exist, or a file that the script needs was changed.
    """
    clone = sources / case.clone
    if not (clone / ".git").exists():
        raise TargetError(f"{clone} is missing: it must be a clone of {case.repository}. Create it, or exclude {case.name}.")
    if changed := _git(clone, "diff", "--name-only", "--diff-filter=d", "HEAD", "--", *case.files):
        raise TargetError(f"These files of {clone} were changed: {', '.join(changed.split())}. Restore them.")
    return clone


def copy_sources(case: Case, sources: Path, work: Path) -> str:
    """Copy the committed files of a clone that a run needs; return the commit.

    Raises:
        TargetError: See `check_clone`.
    """
    clone = check_clone(case, sources)
    for name in _git(clone, "ls-files", "-z", "--", *case.files).rstrip("\0").split("\0"):
        if (clone / name).is_file():  # large data files may be missing in a clone; the script reports it if it needs one
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(clone / name, work / name)
    return _git(clone, "rev-parse", "HEAD").strip()


def _git(clone: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(clone), *words], check=True, capture_output=True, text=True).stdout  # noqa: S607


def profile_part(case: Case, run: PublicRun, work: Path) -> Row:
    """Profile a script; return the profile, or why there is none."""
    out = work / "hasten-profile.json"
    why = call(["profile", case.script, "--json", str(out)], case, run, work, PROFILE_LIMIT_S)
    return {"why": why, "found": None if why else _read(out, run, work)}


def tune_part(case: Case, run: PublicRun, work: Path) -> Row:
    """Tune a script; return the proved result, or why nothing could be tried."""
    out = work / "hasten-out"
    limit_s = parse_duration(run.budget) + TUNE_SLACK_S
    why = call(["tune", case.script, "--budget", run.budget, "--out", str(out)], case, run, work, limit_s)
    if not why and not (out / "evidence.json").exists():
        why = "`hasten tune` wrote no evidence"
    if not (out / "evidence.json").exists():
        return {"why": why, "found": None, "budget": run.budget}
    texts = {f"{name}_text": _text(out / f"hasten.{end}", work) for name, end in (("plan", "toml"), ("patch", "patch"))}
    judged = judge_tuning(_read(out / "evidence.json", run, work))
    return {"why": "", "found": {**judged, **texts}, "budget": run.budget, "said": why}  # it fails if nothing could be tried


def whole_part(case: Case, run: PublicRun, work: Path, row: Row) -> Row:
    """Time whole runs of a script, plain and under the plan of its tuning."""
    tuned = found(row, "tune")
    for folder in (work, ROOT / "src"):  # as after a first run: otherwise each run would compile all modules again
        subprocess.run([run.python, "-m", "compileall", "-q", str(folder)], check=False, stdout=subprocess.DEVNULL)
    if tuned and tuned["plan"]:
        plan = Plan.from_dict(tuned["plan"], catalogue())
        tuned = {"plan_text": plan.to_toml(), **tuned, **written_patch(case, work, plan)}
    measured = measure_whole(case, run.python, work, tuned, run.rounds)
    told: Row = json.loads(shortened(json.dumps(measured), run, work.parent / "run"))
    return {**told, "plan": (tuned or {}).get("plan")}


def written_patch(case: Case, work: Path, plan: Plan) -> Row:
    """Write a plan into a script with this version of Hasten: the patch, what it leaves out, and the variables to set."""
    above = [str((work / case.folder / entry).resolve()) for entry in case.path]
    with chdir(work / case.folder):
        try:
            sys.path += above  # as PYTHONPATH has them under `hasten tune`
            patch = suggest(plan, Path(case.script))
        finally:
            del sys.path[len(sys.path) - len(above) :]
    return {
        "patch_text": patch.diff,
        "patch_folder": patch.folder.relative_to(work).as_posix(),
        "patch_left": patch.left,
        "patch_variables": required_environment(plan.optimizations),
    }


def _text(path: Path, work: Path) -> str:
    """Return a file's text, without this run's folder; empty if there is none."""
    return path.read_text(encoding="utf-8").replace(f"{work}/", "") if path.exists() else ""


def _read(path: Path, run: PublicRun, work: Path) -> dict[str, Any]:
    """Read a JSON file, with the folders of this run replaced."""
    text = path.read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(shortened(text, run, work))
    return found


def shortened(text: str, run: PublicRun, work: Path) -> str:
    """Replace folders that only exist on this machine by placeholders."""
    environment = Path(run.python).absolute().parents[1]
    for folder, name in ((work, ""), (environment, "<environment>/"), (ROOT, "")):
        text = text.replace(f"{folder}/", name)
    return text


def call(arguments: Sequence[str], case: Case, run: PublicRun, work: Path, limit_s: float) -> str:
    """Run `hasten ARGUMENTS -- script arguments`; return why it failed, in its own last words, or an empty string."""
    command = [run.python, "-P", "-m", "hasten", *arguments, "--", *case.arguments]
    done = start(command, case, work, limit_s)
    if done.code == OVER_TIME:
        return f"`hasten {arguments[0]}` did not end within {limit_s:.0f} s"
    words = last_words([*done.out.splitlines(), *done.errors.splitlines()])
    return shortened(f"`hasten {arguments[0]}` ended with {done.code}: {words}", run, work) if done.code else ""
