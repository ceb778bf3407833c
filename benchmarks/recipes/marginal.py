"""Measure the gain of each part of the text-detection recipe: whole steps with and without it, in fresh processes.

    python -m benchmarks.recipes.marginal WEIGHTS --processes 5

A process trains the receipts job under its plan. For each part it runs training updates, or batches of a validation pass,
with the part, without it twice, and with it again (or the reverse). Times are CPU seconds of all threads of the process,
with one PyTorch thread, which other processes hardly affect. Wall-clock seconds are recorded too. The unit is a process. A
ratio is the time without the part over the time with it. WEIGHTS come from a trained run: an untrained network finds no
text, so validation would have nothing to count.

`benchmarks/results/pruning_ocr.json` keeps the rows of parts that were deleted as a result; each sample has its commit.
"""

from __future__ import annotations

import argparse
import ctypes.util
import json
import os
import random
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.recipes.jobs.sroie import SroieJob
from benchmarks.record import RESULTS, provenance, record
from hasten.core.plan import Plan
from hasten.core.stats import paired_interval
from hasten.optimizations import catalogue
from hasten.recipes.ocr.batch import OcrBatch
from hasten.recipes.ocr.data import OcrData
from hasten.recipes.ocr.job import OcrJob
from hasten.recipes.ocr.naive import DecodedHeldOutData
from hasten.recipes.weights import load_weights
from hasten.train.build import build
from hasten.train.loop import Loop
from hasten.train.validate import HeldOut

PLANS: dict[str, dict[str, dict[str, Any]]] = {
    "float32": {"sample_cache": {}},
    "bfloat16": {"sample_cache": {}, "precision": {"dtype": "bfloat16"}},
}
"""The plan of a tuning; its allocator (tcmalloc) is preloaded."""
PHASES = ("train", "valid")
STEPS = {"train": 2, "valid": 1}
"""Per turn: updates, and validations of `VALID_BATCHES` batches."""
VALID_BATCHES = 3
CONFIDENCE = 0.95
LEAST_GAIN = 0.10
"""Smallest fraction of training or validation time that a part must save to stay."""
MOST_LINES = 150
"""Largest number of lines of a part that stays."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A part, and its replacement.

    Attributes:
        what: Description.
        lines: Lines of source that only this part needs.
        phases: Phases it affects, by precision.
        swaps: Owner, attribute and value of each replacement.
        valid_data: Creates the validation data without the part.
    """

    what: str
    lines: int
    phases: Mapping[str, tuple[str, ...]]
    swaps: tuple[tuple[Any, str, Any], ...] = ()
    valid_data: Callable[[OcrJob], Any] | None = None


_CHANNELS_LAST = OcrJob.device_transform


def _contiguous(self: OcrJob, batch: OcrBatch) -> OcrBatch:
    made = _CHANNELS_LAST(self, batch)
    return made._replace(images=made.images.contiguous())


def _decoded_anew(job: OcrJob) -> Any:
    return DecodedHeldOutData(OcrData(job.items()[1]), job.canonical_size())


PIECES: dict[str, Piece] = {
    "held_out": Piece(
        what="held-out images and targets cached in memory", lines=45, phases=dict.fromkeys(PLANS, ("valid",)),
        valid_data=_decoded_anew,
    ),
    "channels_last": Piece(
        what="images normalised in the order of their bytes", lines=1, phases=dict.fromkeys(PLANS, PHASES),
        swaps=((OcrJob, "device_transform", _contiguous),),
    ),
}  # fmt: skip


@contextmanager
def without(piece: Piece | None) -> Iterator[None]:
    """Disable a part temporarily; None disables nothing."""
    with ExitStack() as stack:
        for owner, name, value in piece.swaps if piece else ():
            stack.enter_context(patch.object(owner, name, value))
        yield


def measure(precision: str, weights: Path, seed: int) -> list[dict[str, Any]]:
    """Run the turns of all parts in this process."""
    torch.set_num_threads(1)
    job = SroieJob()
    live = build(job, Plan.from_dict(PLANS[precision], catalogue()), seed=seed)
    loop, held = Loop(live, rewinds=False), {False: HeldOut(live)}
    chance = random.Random(seed)
    pieces = [(name, phase) for name, piece in PIECES.items() for phase in PHASES if phase in piece.phases[precision]]
    rows = []
    for name, phase in chance.sample(pieces, len(pieces)):
        piece = PIECES[name]
        load_weights(live.model, weights)
        held[True] = HeldOut(live, data=piece.valid_data(job)) if piece.valid_data else held[False]
        order = [False, True, True, False] if chance.random() < 0.5 else [True, False, False, True]
        for out in (False, True):  # the first step of each kind compiles kernels
            take(loop, held[out], piece if out else None, phase)
        turns: dict[str, dict[str, list[float]]] = {side: {"cpu_s": [], "wall_s": []} for side in ("with", "without")}
        for out in order * 2:
            for _ in range(STEPS[phase]):
                cpu_s, wall_s = take(loop, held[out], piece if out else None, phase)
                side = turns["without" if out else "with"]
                side["cpu_s"].append(cpu_s)
                side["wall_s"].append(wall_s)
        rows.append({"piece": name, "phase": phase, **turns})
        print(name, phase, {side: round(median(turns[side]["cpu_s"]), 3) for side in turns}, file=sys.stderr, flush=True)
    return rows


def take(loop: Loop, held: HeldOut, piece: Piece | None, phase: str) -> tuple[float, float]:
    """Run one step, without the given part; return its CPU seconds and wall-clock seconds."""
    with without(piece):
        cpu, wall = process_time(), perf_counter()
        if phase == "train":
            loop.run(1)
        else:
            held.measure(max_batches=VALID_BATCHES)
        return process_time() - cpu, perf_counter() - wall


def table(samples: list[dict[str, Any]], pieces: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one row for each part and measured precision, or one without measurements."""
    rows = []
    for name, piece in pieces.items():
        measured = [_measured(samples, name, precision) for precision in PLANS]
        for precision, phases in zip(PLANS, measured, strict=True):
            if phases or (not any(measured) and precision == next(iter(PLANS))):
                row = {"piece": name, **piece, **({"precision": precision} if phases else {}), **phases}
                rows.append(row | {"decision": decision(row)})
    return rows


def decision(row: Mapping[str, Any]) -> str:
    """Return the decision about a part, and why."""
    if row["lines"] > MOST_LINES:
        return f"deleted: it needs more than {MOST_LINES} lines"
    phases = [row[phase] for phase in PHASES if phase in row]
    if not phases:
        return f"deleted: {row['note']}"
    gain = max(1 - 1 / phase["ratio"] for phase in phases)
    return "stays" if gain >= LEAST_GAIN else f"deleted: it saves less than {LEAST_GAIN:.0%}"


def _measured(samples: list[dict[str, Any]], name: str, precision: str) -> dict[str, Any]:
    """Return the ratio of each phase, with its interval."""
    found = {}
    for phase in PHASES:
        turns = [
            turn for sample in samples if sample["precision"] == precision
            for turn in sample["turns"] if turn["piece"] == name and turn["phase"] == phase
        ]  # fmt: skip
        if len(turns) > 1:
            lean, whole = ([median(turn[side]["cpu_s"]) for turn in turns] for side in ("without", "with"))
            ratio = paired_interval(lean, whole, CONFIDENCE)
            found[phase] = {"ratio": ratio.ratio, "low": ratio.low, "high": ratio.high, "processes": len(turns)}
    return found


def run(weights: Path, precision: str, processes: int, seconds: float) -> None:
    """Measure in fresh processes until all are done or the time is up, and record the available samples."""
    preload = ctypes.util.find_library("tcmalloc_minimal") or ""
    begun = perf_counter()
    rows: list[dict[str, Any]] = []
    for number in range(processes):
        if number and (perf_counter() - begun) * (number + 1) / number > seconds:
            print(f"stopped after {number} processes", flush=True)
            break
        command = [sys.executable, "-m", "benchmarks.recipes.marginal", str(weights), "--precision", precision, "--child"]
        command.append(f"{secrets.randbelow(2**31)}")
        environment = {**os.environ, "LD_PRELOAD": preload}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
        rows = add({"precision": precision, "turns": json.loads(done.stdout), "where": provenance()})
    for row in rows:
        print(json.dumps(row), flush=True)


def add(sample: dict[str, Any]) -> list[dict[str, Any]]:
    """Record one more process, and return the rows of all."""
    path = RESULTS / "pruning_ocr.json"
    recorded = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"samples": [], "pieces": {}}
    samples, pieces = [*recorded["samples"], sample], recorded["pieces"]
    pieces |= {name: {"what": piece.what, "lines": piece.lines, "note": ""} for name, piece in PIECES.items()}
    rows = table(samples, pieces)
    result = {"rows": rows, "pieces": pieces, "samples": samples}
    record("pruning_ocr", result, "python -m benchmarks.recipes.marginal WEIGHTS")
    return rows


def main() -> None:
    """Measure and record, or act as one process of a measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--precision", choices=list(PLANS), default="float32")
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=450.0, help="start no process that would end after this time")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child is not None:
        json.dump(measure(asked.precision, asked.weights, asked.child), sys.stdout)
    else:
        run(asked.weights, asked.precision, asked.processes, asked.seconds)


if __name__ == "__main__":
    main()
