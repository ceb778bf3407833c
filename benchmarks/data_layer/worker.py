"""Measure one system in a separate process, and print the result as JSON in the last line of output."""

from __future__ import annotations

import argparse
import json
import sys
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

from benchmarks.data_layer.system import System
from benchmarks.data_layer.system_memory import all_files, evict, private_bytes, warm, watched
from benchmarks.data_layer.systems import WORKLOADS


def warm_epochs(system: System, folder: Path, seconds: float) -> dict[str, Any]:
    """Time whole epochs over files in the page cache, after uncounted epochs of a quarter of that time."""
    warm(all_files(folder, system.files))
    batches, epochs = system.open(folder), list[dict[str, Any]]()
    begun = perf_counter()
    while perf_counter() - begun < seconds / 4:
        _epoch(batches, perf_counter())
    while sum(epoch["seconds"] for epoch in epochs) < seconds:
        epochs.append(_epoch(batches, perf_counter()))
    samples = sum(epoch["samples"] for epoch in epochs)
    taken = sum(epoch["seconds"] for epoch in epochs)
    return {"seconds_per_sample": taken / samples, "epochs": epochs}


def cold_epoch(system: System, folder: Path, _seconds: float) -> dict[str, Any]:
    """Time the first epoch over files that must come from the disk, including opening them."""
    still_there = evict(all_files(folder, system.files))
    started = perf_counter()
    epoch = _epoch(system.open(folder), started)
    return {"seconds_per_sample": epoch["seconds"] / epoch["samples"], "in_memory_before_frac": still_there, **epoch}


def _epoch(batches: Iterable[Any], started: float) -> dict[str, Any]:
    """Iterate over an epoch without using its batches."""
    samples = 0
    for batch in batches:
        samples += len(batch)
    return {"samples": samples, "seconds": perf_counter() - started}


def memory(system: System, folder: Path, _seconds: float) -> dict[str, Any]:
    """Return the peak private memory of an epoch beyond that of the process before; untimed."""
    before = private_bytes(psutil.Process())
    with watched() as peak:
        for _ in system.open(folder):
            pass
    return {"private_bytes": max(peak.num_bytes - before, 0), "private_before_bytes": before}


def digest(system: System, folder: Path, _seconds: float) -> dict[str, Any]:
    """Return a number that is equal for all systems that give the same samples once per epoch, in any order."""
    total = count = size = 0
    form = ""
    for batch in system.open(folder):
        form = form or _form(batch)
        for row in batch.to_pylist() if isinstance(batch, pa.Array) else batch:
            data = row.encode() if isinstance(row, str) else np.ascontiguousarray(row).tobytes()
            total = (total + zlib.crc32(data)) % 2**64
            count, size = count + 1, size + len(data)
    return {"digest": total, "count": count, "num_bytes": size, "form": form}


def _form(batch: Any) -> str:
    if isinstance(batch, list):
        return f"list of {type(batch[0]).__name__}"
    if isinstance(batch, pa.Array):
        return "Arrow text" if pa.types.is_string(batch.type) or pa.types.is_large_string(batch.type) else str(batch.type)
    return f"{type(batch).__name__} of {batch.dtype}, {list(batch.shape[1:])}"


def page_cache(system: System, folder: Path, seconds: float) -> dict[str, Any]:
    """Measure how fast the files of a system can be read into a reused buffer: an upper limit for any copy."""
    files = all_files(folder, system.files)
    warm(files)
    taken, size, buffer = 0.0, 0, bytearray(2**20)
    while taken < seconds:
        started = perf_counter()
        for path in files:
            with path.open("rb", buffering=0) as file:
                while count := file.readinto(buffer):
                    size += count
        taken += perf_counter() - started
    return {"seconds_per_byte": taken / size}


ACTS: dict[str, Callable[[System, Path, float], dict[str, Any]]] = {
    "warm": warm_epochs,
    "cold": cold_epoch,
    "memory": memory,
    "same": digest,
    "page_cache": page_cache,
}


def main() -> None:
    """Run the measurement given by the arguments."""
    parser = argparse.ArgumentParser()
    parser.add_argument("act", choices=list(ACTS))
    parser.add_argument("workload", choices=list(WORKLOADS))
    parser.add_argument("system")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, required=True)
    given = parser.parse_args()
    system = WORKLOADS[given.workload].systems[given.system]
    found = ACTS[given.act](system, given.folder, given.seconds)
    sys.stdout.write("\n" + json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
