"""Measure memory: an epoch over a store larger than it, and a conversion of many dialogues, each killed beyond a limit."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.data_layer.sizes import GIB, Sizes
from benchmarks.data_layer.sources import talks
from benchmarks.data_layer.system_memory import ENDED, watched
from benchmarks.record import ROOT
from hasten.data import StoreWriter, Stream
from hasten.data.convert.job import convert

LIMIT_BYTES = GIB
NAMES = {"epoch": "an epoch over a store of 8 GiB", "conversion": "a conversion of 2 million dialogues"}


def measure_memory(name: str, folder: Path, sizes: Sizes) -> dict[str, Any]:
    """Return the peak private memory of a process and its children, including all their imports."""
    source = (_large_store if name == "epoch" else _many_talks)(folder, sizes)
    command = [sys.executable, "-m", "benchmarks.data_layer.memory", name, str(source), str(folder / "made")]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        said, _ = process.communicate()
    finally:
        with suppress(ProcessLookupError):  # workers of a killed process wait for it
            os.killpg(process.pid, signal.SIGKILL)
    if process.returncode == ENDED:
        return {"within_limit": False, "limit_bytes": LIMIT_BYTES, "peak_private_bytes": None}
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    found: dict[str, Any] = json.loads(said.strip().splitlines()[-1])
    return {"within_limit": True, "limit_bytes": LIMIT_BYTES, **found}


def _large_store(folder: Path, sizes: Sizes) -> Path:
    random = np.random.default_rng(0)
    part = random.integers(0, 255, (64, 320, 320, 3), dtype=np.uint8)
    with StoreWriter(folder / "store", block_rows=64) as writer:
        for number in range(-(-sizes.store_bytes // part.nbytes)):
            part[0] = number % 255
            writer.write({"image": part})
    return folder / "store"


def _many_talks(folder: Path, sizes: Sizes) -> Path:
    path = folder / "talks.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for text in talks(sizes.many_talks):
            file.write(json.dumps({"text": text}) + "\n")
    return path


def _epoch(source: Path, _made: Path) -> int:
    return sum(batch.num_rows for batch in Stream(source, batch_size=64, form="torch", workers=2))


def _conversion(source: Path, made: Path) -> int:
    return convert(source, made).manifest.num_rows


ACTS: dict[str, Callable[[Path, Path], int]] = {"epoch": _epoch, "conversion": _conversion}


def main() -> None:
    """Run the measured work in this process, under the limit."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=list(ACTS))
    parser.add_argument("source", type=Path)
    parser.add_argument("made", type=Path)
    given = parser.parse_args()
    started = perf_counter()
    with watched(limit_bytes=LIMIT_BYTES) as peak:
        rows = ACTS[given.name](given.source, given.made)
    found = {"rows": rows, "seconds": perf_counter() - started, "peak_private_bytes": peak.num_bytes}
    sys.stdout.write("\n" + json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
