"""Measure one way to save at one size in a separate process, alternating updates with and without a save.

A save costs its stall (the call), the work between updates until it has ended, and its dip (the slowdown of updates while it
is in progress). Their sum is how much longer updates with a save take than the same number without.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from benchmarks.checkpoints.ways import WAYS, Way
from hasten.core.job import Job
from hasten.core.plan import Plan
from hasten.train.build import build
from hasten.train.loop import Loop

WIDTH = 4096
LAYER_MB = 3 * 4 * WIDTH * WIDTH / 1e6
"""Bytes per parameter: a layer's weights and AdamW's two moments."""
WARM_UPDATES = 3
PLAIN_UPDATES = 8
MOST_UPDATES = 400


class Layers(Job):
    """Linear layers with AdamW: a state of a given size."""

    batch_size = 32
    num_updates = 100000
    layers = 1

    def model(self) -> nn.Module:
        """Create layers without biases."""
        return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(self.layers)))

    def train_data(self) -> Dataset[Any]:
        """Return random rows."""
        return TensorDataset(torch.randn(256, WIDTH, generator=torch.Generator().manual_seed(0)))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return AdamW that processes each tensor in one pass."""
        return torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """Compute the mean square."""
        out: torch.Tensor = model(batch[0])
        return out.square().mean()


def timed_updates(loop: Loop, num: int) -> list[float]:
    """Return the seconds of each of `num` updates."""
    found = []
    for _ in range(num):
        started = perf_counter()
        loop.run(1)
        found.append(perf_counter() - started)
    return found


def one_save(loop: Loop, way: Way, path: Path) -> dict[str, Any]:
    """Measure updates without a save, with one, and again without one."""
    before = timed_updates(loop, PLAIN_UPDATES)
    path.mkdir(parents=True)
    started = perf_counter()
    folder = way.begin(path)
    stall = perf_counter() - started
    during: list[float] = []
    asked = 0.0
    while True:
        asked -= perf_counter()
        over = way.has_ended()
        asked += perf_counter()
        if over:
            break
        during += timed_updates(loop, 1)
        if len(during) >= MOST_UPDATES:
            raise RuntimeError(f"the save did not end within {MOST_UPDATES} updates")
    ended = perf_counter() - started
    flushed = perf_counter()
    flush(folder)
    flush_s = perf_counter() - flushed
    plain = median([*before, *timed_updates(loop, PLAIN_UPDATES)])
    dip = sum(during) - len(during) * plain
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return {
        "stall_s": stall,
        "dip_s": dip,
        "asked_s": asked,
        "lost_s": stall + asked + dip,
        "ended_s": ended,
        "durable_s": ended + flush_s,
        "update_s": plain,
        "updates_during": len(during),
        "num_bytes": size,
    }


def flush(folder: Path) -> None:
    """Flush all files below a folder to the disk."""
    for file in folder.rglob("*"):
        if file.is_file():
            handle = os.open(file, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


def main(name: str, megabytes: int, folder: Path, saves: int) -> None:
    """Print one JSON line: a list of saves, the first of them cold."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    job = Layers()
    job.layers = max(1, round(megabytes / LAYER_MB))
    loop = Loop(build(job, Plan()), rewinds=False)
    loop.run(WARM_UPDATES)
    way = WAYS[name](loop)
    found = []
    for number in range(saves):
        path = folder / f"save{number}" / "state"
        found.append(one_save(loop, way, path))
        shutil.rmtree(path.parent)
    way.close()
    print(json.dumps(found), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
