"""A small job with constant update times, and versions of it that are slower by a known fraction."""

from __future__ import annotations

from collections import deque
from time import perf_counter, thread_time
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import hasten


class SteadyJob(hasten.Job):
    """A small perceptron: uniform updates of a few milliseconds, on one thread."""

    batch_size = 64
    num_updates = 100_000
    drag_frac = 0.0

    def model(self) -> nn.Module:
        """Create the model."""
        torch.set_num_threads(1)
        return nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 10))

    def train_data(self) -> Dataset[Any]:
        """Create random data."""
        generator = torch.Generator().manual_seed(0)
        return TensorDataset(torch.randn(4096, 256, generator=generator), torch.randint(10, (4096,), generator=generator))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Create the optimizer; each step is followed by a wait of `drag_frac` of the time since the last."""
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        if self.drag_frac:
            optimizer.register_step_post_hook(Drag(self.drag_frac))
        return optimizer

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """Return the cross entropy."""
        inputs, targets = batch
        return nn.functional.cross_entropy(model(inputs), targets)


class Drag:
    """Inject a slowdown: make each update longer by a fraction of its time, by spinning.

    The thread's CPU time is used, since a suspended process waits for no update. An update that takes far longer than the
    lower quartile of the last ones counts as that quartile: a turn may have two updates only, and the first includes reading
    a command and the machine's accounting, which belong to no update.
    """

    def __init__(self, frac: float) -> None:
        self.frac, self.last = frac, thread_time()
        self.lately: deque[float] = deque(maxlen=31)

    def __call__(self, *_: Any) -> None:
        """Spin for the fraction of the time since the last call."""
        spent = thread_time() - self.last
        self.lately.append(spent)
        usual = sorted(self.lately)[len(self.lately) // 4]
        until = perf_counter() + self.frac * (spent if spent < 1.7 * usual else usual)
        while perf_counter() < until:
            continue
        self.last = thread_time()


class Slower10Job(SteadyJob):
    """The steady job, every update 10 % longer."""

    drag_frac = 0.10


class Slower20Job(SteadyJob):
    """The steady job, every update 20 % longer."""

    drag_frac = 0.20
