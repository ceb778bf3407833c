"""`make bench-data`: all systems in turns, in fresh processes, and what they make of the goals."""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.data_layer.caches import measure_caches
from benchmarks.data_layer.memory import measure_memory
from benchmarks.data_layer.sources import write_pictures, write_text, write_tokens
from benchmarks.data_layer.systems import SYSTEMS
from benchmarks.record import ROOT, record

WRITERS: dict[str, Callable[[Path], None]] = {"text": write_text, "tokens": write_tokens, "pictures": write_pictures}
ROUNDS = 5
SAME = {"text": None, "tokens": ("upshift", "DataLoader", "DataLoader, __getitems__"), "pictures": None}
"""Systems that must give the same samples; None for all."""


def data(arguments: list[str]) -> None:
    """The command `python -m benchmarks data`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks data", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="processes of each system, in turns")
    parser.add_argument("--only", nargs="+", choices=[*WRITERS, "memory", "caches"], help="these parts alone")
    given = parser.parse_args(arguments)
    print(f"wrote {run_data(given.rounds, given.only)}", flush=True)


def run_data(rounds: int = ROUNDS, only: list[str] | None = None) -> Path:
    """Measure everything, or the workloads named, and record it."""
    rows: list[dict[str, Any]] = []
    folder = Path(tempfile.mkdtemp(prefix="upshift-bench-data-"))
    try:
        for workload, write in WRITERS.items():
            if only and workload not in only:
                continue
            place = folder / workload
            place.mkdir()
            print(f"{workload}: making the data", flush=True)
            write(place)
            rows += _workload(workload, place, rounds)
            shutil.rmtree(place)
        if not only or "memory" in only:
            rows += measure_memory(folder)
        if not only or "caches" in only:
            rows += measure_caches(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return record("data", {"rows": rows}, "python -m benchmarks data")


def _workload(workload: str, folder: Path, rounds: int) -> list[dict[str, Any]]:
    systems = list(SYSTEMS[workload])
    order = random.Random(f"data-{workload}")
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in [*systems, "page cache"]}
    for number in range(rounds):
        for name in order.sample(list(found), len(found)):
            found[name].append(_ask("page_cache" if name == "page cache" else "measure", workload, name, folder))
        rates = ", ".join(f"{name} {found[name][-1].get('samples_per_s', 0):,.0f}" for name in systems)
        print(f"{workload}, round {number + 1}: {rates}", flush=True)
    digests = {name: _ask("digest", workload, name, folder) for name in SAME[workload] or systems}
    disk = median(one["bytes_per_s"] for one in found.pop("page cache"))
    rows = []
    for name, raw in found.items():
        ratios = [
            ours["samples_per_s"] / theirs["samples_per_s"] for ours, theirs in zip(found["upshift"], raw, strict=True)
        ]
        rows.append(
            {
                "workload": workload,
                "system": name,
                "samples_per_s": median(one["samples_per_s"] for one in raw),
                "bytes_per_s": median(one["bytes_per_s"] for one in raw),
                "share_of_page_cache": median(one["bytes_per_s"] for one in raw) / disk,
                "private_mib": median(one["private_mib"] for one in raw),
                "upshift_over_it": median(ratios),
                "upshift_over_it_low": min(ratios),
                "upshift_over_it_high": max(ratios),
                "same_samples": digests[name] == digests["upshift"] if name in digests else None,
                "raw": raw,
            }
        )
    return rows


def _ask(what: str, workload: str, system: str, folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.data_layer.worker", what, workload, system, str(folder)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found
