"""The live job of a script: what optimizations act on, filled with what is seen of the script as it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import Dataset

from hasten.core.errors import JobError
from hasten.core.job import Job
from hasten.core.live import LiveJob, Pipeline

FLAGS = ("fused", "foreach")
"""What of an optimizer is set in its groups, and says how it is computed, not what."""


class ScriptJob(Job):
    """Stands for the job of a script: the script itself makes model, data, optimizer and loss.

    Attributes:
        batch_size: Of the training loader; 1 until one is seen, or where it says none.
    """

    def __init__(self) -> None:
        self.batch_size = 1  # type: ignore[misc]  # of this script; a class variable of jobs that users write

    def model(self) -> nn.Module:
        """The script makes it."""
        raise JobError(_ASKED)

    def train_data(self) -> Dataset[Any]:
        """The script makes it."""
        raise JobError(_ASKED)

    def optimizer(self, model: nn.Module) -> Optimizer:
        """The script makes it."""
        raise JobError(_ASKED)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """The script computes it."""
        raise JobError(_ASKED)


_ASKED = "A script makes its model, data and optimizer itself; Hasten cannot make them anew."


def script_live() -> LiveJob:
    """A live job that holds nothing yet."""
    live = LiveJob(job=ScriptJob(), device=torch.device("cpu"), seed=0)
    live.pipeline = Pipeline(load=_no_samples, finish=_unchanged, collate=_unchanged)
    live.dataset = None
    return live


def _no_samples(_index: int) -> Any:
    raise JobError("No loader of the script has been seen yet.")


def _unchanged(value: Any) -> Any:
    return value


def main_module(called: Mapping[int, nn.Module], optimizer: Optimizer) -> nn.Module | None:
    """Which of the modules that were called with gradients holds most of what the optimizer changes; None if none does.

    Of two that hold the same, the first that was called: it is the outer one, or the one that begins the loss.
    """
    trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    best, most = None, 0
    for module in called.values():
        held = sum(parameter.numel() for parameter in module.parameters() if id(parameter) in trained)
        if held > most:
            best, most = module, held
    return best


def set_flags(live: LiveJob, own: Optimizer) -> None:
    """Give the script's own optimizer the flags of the one that an optimization put in its place, and put it back.

    The script, its schedules and its scaler hold the object they made; nobody but us has seen the other one.

    Raises:
        JobError: The new one is of another class.
    """
    made = live.optimizer
    if made is own:
        return
    live.optimizer = own
    if type(made) is not type(own):
        raise JobError(f"A script keeps the {type(own).__name__} it has made: it cannot become a {type(made).__name__}.")
    for mine, theirs in zip(own.param_groups, made.param_groups, strict=True):
        for name in FLAGS:
            if name in theirs:
                mine[name] = theirs[name]
    for name in FLAGS:
        if name in made.defaults:
            own.defaults[name] = made.defaults[name]
