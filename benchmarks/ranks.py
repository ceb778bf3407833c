"""Compare ways to sum gradients over ranks: one message, buckets, 16-bit numbers.

Two ranks communicate over gloo on this machine, with a model of about 20 million parameters. All arms live in the same two
processes and take turns, so that drift of the machine affects all equally. A network between the ranks is not measured: the
loopback device is memory.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from benchmarks.record import ROOT, record
from hasten.core.job import Job
from hasten.core.optimization import Optimization
from hasten.core.plan import Plan
from hasten.optimizations.gradient_buckets import GradientBuckets
from hasten.optimizations.gradient_compression import GradientCompression
from hasten.train.build import build
from hasten.train.clock import make_clock
from hasten.train.launch import launch
from hasten.train.loop import Loop
from hasten.train.process_group import join_group, leave_group, stay_with_launcher

RANKS = 2
TURNS = 15
UPDATES = 4
WIDTH, LAYERS = 1024, 18
ARMS: dict[str, tuple[Optimization, ...]] = {
    "one message": (),
    "buckets of 1 MiB": (GradientBuckets(bucket_mb=1.0, static_graph=True),),
    "buckets of 25 MiB": (GradientBuckets(bucket_mb=25.0, static_graph=True),),
    "buckets of 25 MiB, looked for": (GradientBuckets(bucket_mb=25.0),),
    "bfloat16": (GradientBuckets(bucket_mb=25.0), GradientCompression(dtype="bfloat16")),
}


class Wide(Job):
    """Linear layers with many bytes of gradients relative to the computation of a step."""

    batch_size = 64
    num_updates = 1000

    def model(self) -> nn.Module:
        """Create a model with about 19 million parameters."""
        layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
        return nn.Sequential(*layers, nn.Linear(WIDTH, 1))

    def train_data(self) -> Dataset[Any]:
        """Return random rows."""
        x = torch.randn(1024, WIDTH, generator=torch.Generator().manual_seed(0))
        return TensorDataset(x, x.mean(dim=1, keepdim=True))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return plain SGD, so that the gradient sum dominates and not the step."""
        return torch.optim.SGD(model.parameters(), lr=1e-3)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """Compute the squared error."""
        return nn.functional.mse_loss(model(batch[0]), batch[1])


def run_ranks(turns: int = TURNS) -> Path:
    """Measure all arms in a group of two processes.

    Raises:
        RuntimeError: A rank failed.
    """
    with tempfile.TemporaryDirectory(prefix="hasten-") as folder:
        path = Path(folder) / "found.json"
        os.chdir(ROOT)
        status = launch(RANKS, [sys.executable, "-m", "benchmarks.ranks", str(turns), str(path)])
        if status:
            raise RuntimeError(f"The group ended with status {status}.")
        found = json.loads(path.read_text(encoding="utf-8"))
    return record("ranks", found, f"python -m benchmarks ranks --count {turns}")


def measure(turns: int) -> dict[str, Any]:
    """Take turns with every arm, on this rank."""
    loops = {name: Loop(build(Wide(), Plan(optimizations=plan))) for name, plan in ARMS.items()}
    ranks = next(iter(loops.values())).ranks
    seconds: dict[str, list[float]] = {name: [] for name in ARMS}
    phases: dict[str, dict[str, float]] = {name: {} for name in ARMS}
    for turn in range(turns + 1):
        for name in _turned(list(ARMS), turn):
            loop = loops[name]
            loop.clock = make_clock(loop.live.device)
            loop.live.counters.clear()
            dist.barrier()
            started = perf_counter()
            loop.run(UPDATES)
            taken = ranks.slowest([perf_counter() - started])[0]
            if turn:  # the first turn warms up
                seconds[name].append(taken / UPDATES)
                for phase, value in loop.clock.seconds.items():
                    phases[name][phase] = phases[name].get(phase, 0.0) + value / (UPDATES * turns)
    plain = next(iter(ARMS))
    model = loops[plain].live.model
    arms = {
        name: {
            "update_s": median(seconds[name]),
            "speed": median(base / mine for base, mine in zip(seconds[plain], seconds[name], strict=True)),
            "phase_s": phases[name],
            "counters_per_update": {key: value / UPDATES for key, value in sorted(loops[name].live.counters.items())},
            "seconds": seconds[name],
        }
        for name in ARMS
    }
    return {
        "ranks": RANKS,
        "backend": str(dist.get_backend()),
        "threads": torch.get_num_threads(),
        "num_params": sum(p.numel() for p in model.parameters()),
        "batch_size": Wide.batch_size,
        "updates_per_turn": UPDATES,
        "arms": arms,
    }


def _turned(names: Sequence[str], turn: int) -> list[str]:
    """Rotate the order of the arms each turn, and reverse it every other turn."""
    at = turn % len(names)
    order = [*names[at:], *names[:at]]
    return order[::-1] if turn % 2 else order


def main() -> None:
    """Run one rank: `python -m benchmarks.ranks TURNS FILE`, in the environment set by `launch`."""
    turns, path = sys.argv[1:]
    stay_with_launcher(1)
    join_group()
    found = measure(int(turns))
    if dist.get_rank() == 0:
        Path(path).write_text(json.dumps(found), encoding="utf-8")
    leave_group()


if __name__ == "__main__":
    main()
