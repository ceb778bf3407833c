"""A job that dies on request: `DIE` is `RANK:UPDATE:HOW[:MARK]`. With a mark (a file), it dies only once.

HOW is the name of a signal that it sends to itself, or `error`.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from benchmarks.chaos_job import ChaosJob


class Dying(ChaosJob):
    """A job with the same numbers, up to rounding, for any number of ranks: no batch statistics, no dropout."""

    epochs = 2

    def model(self) -> nn.Module:
        blocks = [nn.Sequential(nn.Linear(9, 9), nn.Tanh()) for _ in range(2)]
        return nn.Sequential(nn.Linear(32, 9), *blocks, nn.Linear(9, 1))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def schedule(self, optimizer: torch.optim.Optimizer, num_updates: int) -> Any:
        return LambdaLR(optimizer, rate)


def rate(update: int) -> float:
    """Return the learning rate after an update. Called at the end of each one."""
    rank, last, how, mark, *_ = [*os.environ.get("DIE", "-1:-1:never").split(":"), ""]
    if (os.environ.get("RANK", "0"), str(update)) == (rank, last) and not (mark and Path(mark).exists()):
        if mark:
            Path(mark).touch()
        if how == "error":
            raise RuntimeError("dying as requested")
        os.kill(os.getpid(), signal.Signals[how])
    return 0.97**update
