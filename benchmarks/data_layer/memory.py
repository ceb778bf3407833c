"""Memory: an epoch over a large store, and a conversion of many dialogues, each under a limit that would kill it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data_layer.sources import talks
from benchmarks.record import ROOT
from upshift.data import StoreWriter

GIB = 2**30
STORE_BYTES, LIMIT_BYTES = 8 * GIB, GIB
NUM_TALKS = 2_000_000
_WATCHED = """
import json, sys, threading, time
import psutil
peak = 0
def watch():
    global peak
    me = psutil.Process()
    while True:
        private = 0
        for part in (me, *me.children(recursive=True)):
            try:
                private += part.memory_full_info().uss
            except psutil.NoSuchProcess:
                pass
        peak = max(peak, private)
        time.sleep(0.05)
threading.Thread(target=watch, daemon=True).start()
"""
_EPOCH = (
    _WATCHED
    + """
from upshift.data import Stream
started = time.perf_counter()
rows = sum(batch.num_rows for batch in Stream(sys.argv[1], batch_size=64, form="numpy"))
print(json.dumps({"rows": rows, "seconds": time.perf_counter() - started, "peak_private_bytes": peak}))
"""
)
_CONVERSION = (
    _WATCHED
    + """
from upshift.data.convert.job import convert
if __name__ == "__main__":
    started = time.perf_counter()
    made = convert(sys.argv[1], sys.argv[2])
    print(json.dumps({"rows": made.manifest.num_rows, "seconds": time.perf_counter() - started, "peak_private_bytes": peak}))
"""
)


def measure_memory(folder: Path) -> list[dict[str, Any]]:
    """Peak private memory of both, over all of their processes."""
    rows = []
    for name, make, code in (("epoch over 8 GB", _large_store, _EPOCH), ("2 million dialogues", _many_talks, _CONVERSION)):
        place = folder / "memory"
        place.mkdir()
        print(f"{name}: making the data", flush=True)
        source = make(place)
        script = place / "script.py"
        script.write_text(code, encoding="utf-8")
        command = [sys.executable, str(script), str(source), str(place / "converted")]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
        found = json.loads(done.stdout.strip().splitlines()[-1])
        rows.append(
            {"workload": "memory", "system": name, **found, "within_limit": found["peak_private_bytes"] < LIMIT_BYTES}
        )
        print(f"{name}: {found['peak_private_bytes'] / 2**20:,.0f} MiB private, {found['seconds']:.0f} s", flush=True)
        shutil.rmtree(place)
    return rows


def _large_store(folder: Path) -> Path:
    part = np.random.default_rng(0).integers(0, 255, (64, 320, 320, 3), dtype=np.uint8)
    with StoreWriter(folder / "store", block_rows=64) as writer:
        for _ in range(-(-STORE_BYTES // part.nbytes)):
            writer.write({"image": part})
    return folder / "store"


def _many_talks(folder: Path) -> Path:
    path = folder / "talks.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for text in talks(NUM_TALKS):
            file.write(json.dumps({"text": text}) + "\n")
    return path
