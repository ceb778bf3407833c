"""Jobs that train as usual until a known step, from which a fault disturbs them."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

import hasten
from benchmarks.jobs.steady import SteadyJob

ITEM_S = 0.001
"""Seconds to read a sample of the loader-bound job."""
HANG_S = 100.0
"""Seconds of the hang: longer than the watchdog always allows."""
LEAKED = 2**20
"""Elements that each step leaks, in float32."""
FAULTS = ("none", "sleep_15", "sleep_50", "neighbour", "leak", "nan", "spike", "hang", "recompiles")


class Slept(Dataset[Any]):
    """A dataset that takes time to read.

    Args:
        data: The samples.
        seconds: Time that a sample takes. May be changed, also while worker processes read.
    """

    def __init__(self, data: Any, seconds: float) -> None:
        self._data = data
        self.seconds: Any = multiprocessing.Value("d", seconds)

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> Any:
        """Read a sample."""
        if self.seconds.value:
            time.sleep(self.seconds.value)
        return self._data[index]


class Drawn(Dataset[Any]):
    """Random samples of the steady job. No run sees one twice: a loss that approaches 0 jumps."""

    def __len__(self) -> int:
        return 2**20

    def __getitem__(self, index: int) -> Any:
        """Draw a sample."""
        generator = torch.Generator().manual_seed(index)
        return torch.randn(256, generator=generator), torch.randint(10, (), generator=generator)


class LoaderBoundJob(SteadyJob):
    """The steady job, with samples that take most of the time to read."""

    batch_size = 32

    def train_data(self) -> Dataset[Any]:
        """Create random data that is slow to read."""
        return Slept(Drawn(), ITEM_S)


class Fault:
    """Injects a fault at a step.

    Args:
        name: One of `FAULTS`.
        at: Steps that are completed before.
    """

    def __init__(self, name: str, at: int) -> None:
        if name not in FAULTS:
            raise ValueError(f"there is no fault {name!r}: {', '.join(FAULTS)}")
        self._name, self._at = name, at
        self._step, self._seconds, self._last = 0, list[float](), time.perf_counter()
        self._data: Slept | None = None
        self._neighbours: list[subprocess.Popen[bytes]] = []
        self._leaked: list[torch.Tensor] = []
        self._compiled = torch.compile(torch.sin, dynamic=False, backend="eager") if name == "recompiles" else None

    def data(self, data: Any) -> Dataset[Any]:
        """Return the dataset of the job, which the fault can slow down."""
        self._data = data if isinstance(data, Slept) else Slept(data, 0.0)
        return self._data

    def on_step(self, batch_size: int) -> None:
        """Count a step, and disturb it from the step of the fault on."""
        now = time.perf_counter()
        self._seconds.append(now - self._last)
        self._last = now
        first, disturbed = self._step == self._at, self._step >= self._at
        self._step += 1
        if self._compiled is not None:
            self._compiled(torch.ones(1 + max(self._step - self._at, 0) // 20))
        if first and self._name.startswith("sleep_") and self._data is not None:
            share = int(self._name.removeprefix("sleep_")) / 100
            self._data.seconds.value += share * median(self._seconds) / batch_size
        elif first and self._name == "hang":
            time.sleep(HANG_S)
        elif first and self._name == "neighbour":
            spin = [sys.executable, "-c", "while True: pass"]
            self._neighbours = [subprocess.Popen(spin) for _ in range(len(os.sched_getaffinity(0)))]
        elif disturbed and self._name == "leak":
            self._leaked.append(torch.ones(LEAKED))

    def loss(self, loss: torch.Tensor | hasten.Loss) -> torch.Tensor | hasten.Loss:
        """Return the loss of a step, disturbed at the step of the fault."""
        if self._step - 1 != self._at or self._name not in ("nan", "spike"):
            return loss
        if isinstance(loss, hasten.Loss):
            return replace(loss, total=loss.total * float("nan") if self._name == "nan" else loss.total + 20.0 * loss.weight)
        return loss * float("nan") if self._name == "nan" else loss + 20.0

    def end(self) -> None:
        """End the neighbours."""
        for process in self._neighbours:
            process.kill()
            process.wait()


def faulty(kind: type[Any], fault: Fault) -> hasten.Job:
    """Return a job of this kind that the fault disturbs."""

    class Faulty(kind):  # type: ignore[misc]  # the kind is known only now
        """The job with its fault."""

        def train_data(self) -> Any:
            """Create the data."""
            return fault.data(super().train_data())

        def loss(self, model: nn.Module, batch: Any) -> Any:
            """Compute the loss, disturbed."""
            if not model.training:
                return super().loss(model, batch)
            fault.on_step(self.batch_size)
            return fault.loss(super().loss(model, batch))

    job: hasten.Job = Faulty()
    return job
