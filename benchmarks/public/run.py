"""Profile and tune the public scripts through the command line, each unchanged, on a copy of the files it needs.

`python -m benchmarks public --sources DIR [--part profile|tune] [--only NAME ...] [--budget 5m] [--python PATH]`. DIR
contains clones of the repositories. PATH is an interpreter with Hasten and the packages that the scripts import. Rows are
written as they are measured. A script's commit already measured at the current commit is skipped.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.groundtruth.kept import Kept
from benchmarks.groundtruth.processes import end_tree
from benchmarks.public.cases import Case, load_cases
from benchmarks.public.prepare import MAKERS
from benchmarks.public.verdict import Row, judge_tuning, score
from benchmarks.record import ROOT
from hasten.cli.say import parse_duration
from hasten.core.errors import TargetError

NAME = "public"
PARTS = ("profile", "tune")
BUDGET = "5m"
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
    """

    sources: Path
    budget: str = BUDGET
    parts: Sequence[str] = PARTS
    python: str = sys.executable
    again: bool = False


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
    asked = parser.parse_args(words)
    run = PublicRun(sources=asked.sources, budget=asked.budget, parts=asked.part, python=asked.python, again=asked.again)
    kept = Kept(NAME, f"python -m benchmarks public --sources DIR --budget {run.budget}", whole)
    run_public(kept, load_cases(asked.only), run)
    print(f"wrote {kept.path}", flush=True)


def whole(rows: Mapping[str, Row], _beside: Row) -> Row:
    """Assemble the result: how many scripts became faster, and all rows in the order of scripts.toml."""
    listed = [{**about(case), **rows[name]} for name, case in load_cases().items() if name in rows]
    return {**score(listed), "rows": listed}


def about(case: Case) -> Row:
    """Return the description of a script, the start of every row."""
    made = (MAKERS[case.maker].__doc__ or "").partition("\n")[0] if case.maker else ""
    return {
        "name": case.name,
        "repository": case.repository,
        "licence": case.licence,
        "about": case.about,
        "script": (Path(case.folder) / case.script).as_posix(),
        "folder": case.folder,
        "path": list(case.path),
        "arguments": list(case.arguments),
        "command": shlex.join(["python", case.script, *case.arguments]),
        "changed": list(case.changed),
        "data": made,
    }


def run_public(kept: Kept, cases: Mapping[str, Case], run: PublicRun) -> None:
    """Measure each missing part of each script, and print the outcome."""
    for case in cases.values():
        check_clone(case, run.sources)
    for name, case in cases.items():
        commit = _git(run.sources / case.clone, "rev-parse", "HEAD").strip()
        for part in run.parts:
            before = kept.rows.get(name, {}).get(part)
            if before and not run.again and kept.fresh(before) and before["of"] == commit:
                continue
            started = perf_counter()
            found = run_part(case, part, run)
            kept.put(name, part, {**found, "seconds": perf_counter() - started, "of": commit})
            print(f"{part:<9}{name:<24}{told(part, found)}", flush=True)


def told(part: str, found: Row) -> str:
    """Summarize the outcome of a part in one line."""
    if found["why"]:
        return f"failed: {found['why']}"
    return str(found["found"]["bottleneck"]["words"] if part == "profile" else found["found"]["words"])


def run_part(case: Case, part: str, run: PublicRun) -> Row:
    """Profile or tune a script in a separate copy; return the result, or why there is none."""
    with tempfile.TemporaryDirectory(prefix="public-") as name:
        work = Path(name).resolve()
        copy_sources(case, run.sources, work)
        if case.maker:
            into = (work / case.folder / case.into).resolve()
            into.mkdir(parents=True, exist_ok=True)
            MAKERS[case.maker](into)
        return profile_part(case, run, work) if part == "profile" else tune_part(case, run, work)


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
    return {
        "why": why,
        "found": None if why else judge_tuning(_read(out / "evidence.json", run, work)),
        "budget": run.budget,
    }


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
    folder = work / case.folder
    path = [str((folder / entry).resolve()) for entry in case.path]
    path += [entry for entry in [os.environ.get("PYTHONPATH")] if entry]
    environment = {**os.environ, "COLUMNS": "1000", "NO_COLOR": "1", "PYTHONPATH": os.pathsep.join(path)}
    if not path:
        del environment["PYTHONPATH"]
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            end_tree(process.pid)  # including the script and its workers
            process.wait()
            return f"`hasten {arguments[0]}` did not end within {limit_s:.0f} s"
        said.seek(0)
        lines = said.read().splitlines()
    return shortened(f"`hasten {arguments[0]}` ended with {code}: {last_words(lines)}", run, work) if code else ""


def last_words(lines: Sequence[str]) -> str:
    """Return the last line of a failed command's output, and the script's error before it, if any."""
    worth = [line.strip(" │\n") for line in lines if any(sign.isalnum() for sign in line)]
    if not worth:
        return "it printed nothing"
    errors = [line for line in worth[:-1] if re.match(r"[\w.]*(Error|Exception|Interrupt)\b", line)]
    return f"{worth[-1]} ({errors[-1]})" if errors else worth[-1]
