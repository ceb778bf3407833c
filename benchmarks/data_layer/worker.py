"""One system in a process of its own: iterates for so many seconds, and tells what it did, as a line of JSON."""

from __future__ import annotations

import argparse
import json
import sys
import zlib
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import torch

from benchmarks.data_layer.systems import SYSTEMS

MIB = 2**20


def measure(workload: str, system: str, folder: Path, seconds: float) -> dict[str, Any]:
    """Iterate over whole and broken epochs: one that nobody counts, then as many batches as the time holds."""
    make = SYSTEMS[workload][system]
    process = psutil.Process()
    before = private_bytes(process)
    for _ in make(folder):
        pass
    samples = size = 0
    peak = private_bytes(process)
    started = perf_counter()
    while perf_counter() - started < seconds:
        for batch in make(folder):
            samples += len(batch)
            size += _bytes(batch)
            if perf_counter() - started >= seconds:
                break
        peak = max(peak, private_bytes(process))
    took = perf_counter() - started
    return {
        "samples_per_s": samples / took,
        "bytes_per_s": size / took,
        "private_mib": peak / MIB,
        "private_before_mib": before / MIB,
    }


def private_bytes(process: psutil.Process) -> int:
    """Memory that is this process's and its children's alone."""
    return sum(part.memory_full_info().uss for part in (process, *process.children(recursive=True)))


def digest(workload: str, system: str, folder: Path) -> dict[str, Any]:
    """A number that is the same for every system that gives the same samples once an epoch, in any order."""
    total = count = 0
    for batch in SYSTEMS[workload][system](folder):
        rows = batch.to_pylist() if isinstance(batch, pa.Array) else batch
        for row in rows:
            data = row.encode() if isinstance(row, str) else np.ascontiguousarray(row).tobytes()
            total = (total + zlib.crc32(data)) % 2**64
            count += 1
    return {"digest": total, "count": count}


def page_cache(folder: Path, seconds: float) -> dict[str, Any]:
    """How fast a file that the system holds in memory can be read into a buffer that is used again."""
    paths = sorted((folder / "store" / "shards").glob("*"))
    buffer = bytearray(MIB)
    size, started = 0, perf_counter()
    while perf_counter() - started < seconds:
        for path in paths:
            with path.open("rb", buffering=0) as file:
                while count := file.readinto(buffer):
                    size += count
    return {"bytes_per_s": size / (perf_counter() - started)}


def _bytes(batch: Any) -> int:
    if isinstance(batch, list):
        return sum(map(len, batch)) if isinstance(batch[0], str) else 0
    return int(batch.nbytes)


def main() -> None:
    """Do what the arguments say."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["measure", "digest", "page_cache"])
    parser.add_argument("workload")
    parser.add_argument("system")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=4.0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.what == "measure":
        found = measure(given.workload, given.system, given.folder, given.seconds)
    elif given.what == "digest":
        found = digest(given.workload, given.system, given.folder)
    else:
        found = page_cache(given.folder, given.seconds)
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
