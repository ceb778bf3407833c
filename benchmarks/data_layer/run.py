"""Measure the data layer: all systems in turns, each in fresh processes, with warm and with cold caches.

Run `make bench-data`, or `python -m benchmarks data [--only PART ...] [--again]`. Parts already measured at the current
commit on this machine are skipped. Each part records its machine. `--small` runs everything in a few minutes without
recording results.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.data_layer.caches import measure_caches
from benchmarks.data_layer.goals import PAGE_CACHE
from benchmarks.data_layer.memory import NAMES, measure_memory
from benchmarks.data_layer.result import row_name, whole
from benchmarks.data_layer.sizes import RECORD, SMALL, Sizes
from benchmarks.data_layer.systems import WORKLOADS, Workload
from benchmarks.data_layer.table import tables
from benchmarks.groundtruth.processes import unwinding_when_told_to_end
from benchmarks.record import ROOT
from benchmarks.result_file import ResultFile, Row
from hasten.cli.say import progress_on

NAME = "data"
PARTS = (*WORKLOADS, "memory", "caches")
Say = Callable[[str, float, float], None]


def data(arguments: Sequence[str]) -> None:
    """Run the command `python -m benchmarks data`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks data", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="only these parts; others stay")
    parser.add_argument("--again", action="store_true", help="repeat parts already measured at this commit")
    parser.add_argument("--rounds", type=int, help="number of processes of each system with warm caches, in turns")
    parser.add_argument("--small", action="store_true", help="check that everything works, without recording results")
    given = parser.parse_args(arguments)
    sizes = SMALL if given.small else RECORD
    if given.rounds is not None:
        sizes = Sizes(**{**vars(sizes), "rounds": given.rounds})
    with unwinding_when_told_to_end():
        if given.small:
            _show(given.only, sizes)
        else:
            _record(given.only, sizes, again=given.again)


def _show(parts: Sequence[str], sizes: Sizes) -> None:
    """Measure parts, and print their tables."""
    rows: dict[str, Row] = {}
    for part in parts:
        rows |= {name: {"name": name, "measured": found} for name, found in measure(part, sizes).items()}
    print(tables({**whole(rows, {}), "machine": "this machine, at a size that is not meaningful", "row_commits": []}))


def _record(parts: Sequence[str], sizes: Sizes, *, again: bool) -> None:
    """Measure parts, and record each as soon as it is complete."""
    results = ResultFile(NAME, f"python -m benchmarks data --rounds {sizes.rounds}", whole)
    for part in parts:
        if not again and _is_fresh(results, part):
            print(f"{part}: already measured at this commit", flush=True)
            continue
        measured = measure(part, sizes)
        # Rows of a part are compared with each other, so none of another run may stay.
        results.rows = {name: row for name, row in results.rows.items() if not name.startswith(f"{part}: ")}
        for name, found in measured.items():
            results.put(name, "measured", found)
    print(f"wrote {results.path}", flush=True)


def _is_fresh(results: ResultFile, part: str) -> bool:
    """Return whether all rows of a part were measured at the current commit, including those of newly installed rivals."""
    mine = {name: row for name, row in results.rows.items() if name.startswith(f"{part}: ")}
    wanted = [row_name(part, name) for name in WORKLOADS[part].there()] if part in WORKLOADS else []
    fresh = all(results.fresh(row["measured"]) for row in mine.values())
    return bool(mine) and fresh and set(wanted) <= set(mine)


def measure(part: str, sizes: Sizes) -> dict[str, Row]:
    """Measure a part; return its rows by name."""
    with _folder() as folder, progress_on(part) as say:
        if part in WORKLOADS:
            return _workload(part, WORKLOADS[part], folder, sizes, say)
        if part == "caches":
            say("caches", 0, 1)
            return {row_name(part, name): found for name, found in measure_caches(folder, sizes).items()}
        rows: dict[str, Row] = {}
        for number, (name, words) in enumerate(NAMES.items()):
            say(f"memory: {words}", number, len(NAMES))
            place = folder / name
            place.mkdir()
            rows[row_name(part, words)] = measure_memory(name, place, sizes)
            shutil.rmtree(place)
            print(f"memory, {words}: {rows[row_name(part, words)]}", flush=True)
        return rows


@contextmanager
def _folder() -> Iterator[Path]:
    """Create a folder on the disk of the checkout, since a file system in memory has no cold cache."""
    (ROOT / "hasten-out").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-data-", dir=ROOT / "hasten-out") as name:
        yield Path(name)


def _workload(name: str, told: Workload, folder: Path, sizes: Sizes, say: Say) -> dict[str, Row]:
    """Measure every system in every round, in a different order each time."""
    say(f"{name}: preparing the data", 0, 1)
    told.write(folder, sizes)
    systems = list(told.there())
    order = random.Random(f"data-{name}")
    found: dict[str, Row] = {system: {"warm": [], "cold": [], "memory": []} for system in systems}
    found[PAGE_CACHE] = {"warm": []}
    plan = _plan(systems, sizes, order)
    for number, (act, system) in enumerate(plan):
        say(f"{name}, {act}: {system}", number, len(plan))
        asked = "page_cache" if system == PAGE_CACHE else act
        one = _ask(asked, name, systems[0] if system == PAGE_CACHE else system, folder, sizes.seconds)
        if act == "same":
            found[system][act] = one
        else:
            found[system][act].append(one)
        if act in {"warm", "cold"} and system != PAGE_CACHE:
            print(f"{name}, {act}, {system}: {1 / one['seconds_per_sample']:,.0f} samples/s", flush=True)
    return {row_name(name, system): row for system, row in found.items()}


def _plan(systems: Sequence[str], sizes: Sizes, order: random.Random) -> list[tuple[str, str]]:
    """Return the measurements to take of each system, in order."""
    plan: list[tuple[str, str]] = []
    for act, rounds, names in (
        ("same", 1, list(systems)),
        ("warm", sizes.rounds, [*systems, PAGE_CACHE]),
        ("cold", sizes.cold_rounds, list(systems)),
        ("memory", sizes.memory_rounds, list(systems)),
    ):
        for _ in range(rounds):
            plan += [(act, system) for system in order.sample(names, len(names))]
    return plan


def _ask(act: str, workload: str, system: str, folder: Path, seconds: float) -> dict[str, Any]:
    module = "benchmarks.data_layer.worker"
    command = [sys.executable, "-m", module, act, workload, system, str(folder), "--seconds", str(seconds)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found
