"""Run a script under cProfile for a short time, to check Hasten's diagnosis by hand against the functions' times."""

from __future__ import annotations

import pstats
from pathlib import Path
from typing import Any

from benchmarks.public.cases import Case
from benchmarks.public.processes import last_words, start

PROFILED = Path(__file__).with_name("profiled.py")
SECONDS = 25.0
MOST = 14
"""Number of functions that are recorded, by their own time and by their time with all they call."""
SLACK_S = 120.0

Row = dict[str, Any]


def cprofile_part(case: Case, python: str, work: Path) -> Row:
    """Return the functions of a script in which most time went, each with its share and its calls."""
    out = work / "cprofile.out"
    command = [python, str(PROFILED), str(out), str(SECONDS), case.script, *case.arguments, *case.shorter]
    done = start(command, case, work, SECONDS + SLACK_S)
    if not out.exists():
        return {"why": f"ended with {done.code}: {last_words(done.errors.splitlines())}", "found": None}
    return {"why": "", "found": top(out)}


def top(path: Path) -> Row:
    """Return the functions with the largest own times and the largest times in total, as shares of all."""
    stats: Any = pstats.Stats(str(path))
    rows = [
        {"function": _name(key), "calls": calls, "own": own / stats.total_tt, "total": total / stats.total_tt}
        for key, (_, calls, own, total, _) in stats.stats.items()
    ]
    return {
        "seconds": stats.total_tt,
        "own": sorted(rows, key=lambda row: -row["own"])[:MOST],
        "total": sorted(rows, key=lambda row: -row["total"])[: 3 * MOST],
    }


def _name(key: tuple[str, int, str]) -> str:
    file, line, function = key
    return function if file == "~" else f"{'/'.join(Path(file).parts[-2:])}:{line}({function})"
