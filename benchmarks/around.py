"""Measure the events around updates, with and without each technique, for a model with about 50 MB of weights.

For a checkpoint: the stall (until training continues), the dip (the slowdown of updates while it is written) and the time to
durability (until the file in the run's folder is flushed). For metric reports and validation passes: their cost. All arms
run in one process and take turns, in a different order each round.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Self

import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from benchmarks.record import ROOT, record
from hasten.core.job import Job, Loss
from hasten.core.optimization import Optimization
from hasten.core.plan import Plan
from hasten.optimizations.async_logging import AsyncLogging
from hasten.optimizations.background_checkpoint import BackgroundCheckpoint
from hasten.optimizations.validation_batch import ValidationBatch
from hasten.optimizations.validation_compile import ValidationCompile
from hasten.train.build import build
from hasten.train.loop import Loop
from hasten.train.periodic import PeriodicWork

ROUNDS = 12
UPDATES = 8
REPORTS = 200


class FiftyMegabytes(Job):
    """Three square layers of 2048: 12.6 million parameters."""

    batch_size = 16
    epochs = 100

    def model(self) -> nn.Module:
        """Create the model."""
        layers = [layer for _ in range(3) for layer in (nn.Linear(2048, 2048), nn.GELU())]
        return nn.Sequential(*layers, nn.Linear(2048, 8))

    def train_data(self) -> Dataset[Any]:
        """Return 256 random samples."""
        x = torch.randn(256, 2048, generator=torch.Generator().manual_seed(0))
        return TensorDataset(x, torch.arange(256) % 8)

    def valid_data(self) -> Dataset[Any] | None:
        """Return 256 further samples."""
        return self.train_data()

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return plain SGD, so that an update is short compared with a checkpoint."""
        return torch.optim.SGD(model.parameters(), lr=1e-3)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor | Loss:
        """Compute the cross-entropy."""
        return nn.functional.cross_entropy(model(batch[0]), batch[1])


def run_around(rounds: int = ROUNDS) -> Path:
    """Measure all arms."""
    with tempfile.TemporaryDirectory(prefix=".around-", dir=ROOT) as name, ExitStack() as stack:
        folder = Path(name)
        arms = {arm: stack.enter_context(_Arm(plan, folder / arm)) for arm, plan in PLANS.items()}
        result = {
            "weights_bytes": sum(p.numel() * p.element_size() for p in arms["plain"].loop.live.model.parameters()),
            "updates_per_part": UPDATES,
            "checkpoint": _of("checkpoint", arms, rounds, lambda arm: arm.checkpoint()),
            "report": _of("report", arms, rounds, lambda arm: arm.reports()),
            "validation": _of("validation", arms, rounds, lambda arm: arm.validation()),
        }
    return record("around", result, f"python -m benchmarks around --count {rounds}")


@dataclass(frozen=True)
class _Planned:
    event: str
    optimizations: tuple[Optimization, ...] = ()


class _Arm:
    def __init__(self, planned: _Planned, folder: Path) -> None:
        self.event = planned.event
        folder.mkdir()
        self.loop = Loop(build(FiftyMegabytes(), Plan(optimizations=planned.optimizations)))
        self.work = PeriodicWork(self.loop, folder)

    def __enter__(self) -> Self:
        self.loop.run(2)
        return self

    def __exit__(self, *_: object) -> None:
        self.work.close()
        self.loop.close()
        self.loop.live.undo_all()

    def checkpoint(self) -> dict[str, float]:
        """Measure stall, dip and loss of a checkpoint with concurrent updates, and the time to durability of one alone."""
        quiet_s = self._updates_s()
        started = perf_counter()
        self.work.save()
        stall_s = perf_counter() - started
        beside_s = self._updates_s()
        self.work.wait()
        lost_s = perf_counter() - started - quiet_s
        return {"stall_s": stall_s, "dip": beside_s / quiet_s, "lost_s": lost_s, "durable_s": self._durable_s()}

    def reports(self) -> dict[str, float]:
        """Measure the stall of a report, and the time to write one."""
        started = perf_counter()
        for _ in range(REPORTS):
            self.work.report()
        stall_s = perf_counter() - started
        self.work.wait()
        return {"stall_s": stall_s / REPORTS, "written_s": (perf_counter() - started) / REPORTS}

    def validation(self) -> dict[str, float]:
        """Measure a whole validation pass."""
        started = perf_counter()
        loss = self.work.validate()["loss"]
        return {"pass_s": perf_counter() - started, "loss": loss}

    def _durable_s(self) -> float:
        """Measure a checkpoint without concurrent work."""
        started = perf_counter()
        self.work.save()
        self.work.wait()
        return perf_counter() - started

    def _updates_s(self) -> float:
        started = perf_counter()
        self.loop.run(UPDATES)
        return perf_counter() - started


PLANS = {
    "plain": _Planned(""),
    "async_logging": _Planned("report", (AsyncLogging(),)),
    "background_checkpoint": _Planned("checkpoint", (BackgroundCheckpoint(),)),
    "validation_batch": _Planned("validation", (ValidationBatch(times=4),)),
    "validation_compile": _Planned("validation", (ValidationCompile(),)),
}


def _of(
    event: str, arms: Mapping[str, _Arm], rounds: int, act: Callable[[_Arm], dict[str, float]]
) -> dict[str, dict[str, Any]]:
    """Collect medians and raw samples of the arms that affect the event, and of the plain arm; first times are separate."""
    chosen = {name: arm for name, arm in arms.items() if arm.event in ("", event)}
    for arm in chosen.values():
        arm.loop.rewind()  # all arms start from the same weights, so their losses can be compared
        arm.loop.run(2)
    first = {name: act(arm) for name, arm in chosen.items()}
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in chosen}
    for turn in range(rounds):
        for name in list(chosen) if turn % 2 else reversed(list(chosen)):
            taken[name].append(act(chosen[name]))
    return {
        name: {
            **{key: median(sample[key] for sample in samples) for key in samples[0]},
            "first": first[name],
            "samples": samples,
        }
        for name, samples in taken.items()
    }
