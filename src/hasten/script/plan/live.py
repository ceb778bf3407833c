"""Create the live job of a script, which is filled with the objects observed while the script runs."""

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
from hasten.core.seams import Undo, undo_nothing

FLAGS = ("fused", "foreach")
"""Optimizer settings that change how an update is computed but not its result."""


class ScriptJob(Job):
    """A placeholder job: the script itself creates model, data, optimizer and loss.

    Attributes:
        batch_size: Batch size of the training loader; 1 while it is unknown.
    """

    def __init__(self) -> None:
        self.batch_size = 1  # type: ignore[misc]  # per script; users' jobs define it as a class variable

    def model(self) -> nn.Module:
        """Raise an error, because the script creates the model."""
        raise JobError(_ASKED)

    def train_data(self) -> Dataset[Any]:
        """Raise an error, because the script creates the data."""
        raise JobError(_ASKED)

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Raise an error, because the script creates the optimizer."""
        raise JobError(_ASKED)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """Raise an error, because the script computes the loss."""
        raise JobError(_ASKED)


_ASKED = "A script creates its model, data and optimizer itself. Hasten cannot create them again."


def script_live() -> LiveJob:
    """Return an empty live job."""
    live = LiveJob(job=ScriptJob(), device=torch.device("cpu"), seed=0)
    live.pipeline = Pipeline(load=_no_samples, finish=_unchanged, collate=_unchanged)
    live.dataset = None
    return live


def _no_samples(_index: int) -> Any:
    raise JobError("No data loader of the script has been used yet.")


def _unchanged(value: Any) -> Any:
    return value


def main_module(called: Mapping[int, nn.Module], optimizer: Optimizer) -> nn.Module | None:
    """Return the called module with most of an optimizer's parameters; None if none has any.

    If two modules have equally many, return the one that was called first: it is the outer one, or computes the input of the
    other one.
    """
    trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    best, most = None, 0
    for module in called.values():
        count = sum(parameter.numel() for parameter in module.parameters() if id(parameter) in trained)
        if count > most:
            best, most = module, count
    return best


def set_flags(live: LiveJob, own: Optimizer) -> Undo:
    """Copy the flags of an optimization's optimizer to the script's own optimizer, and restore the latter.

    The script, its schedules and its gradient scaler hold references to the optimizer that the script created. The undo
    restores the flags that the script set.

    Raises:
        JobError: The optimization created an optimizer of another class.
    """
    made = live.optimizer
    if made is own:
        return undo_nothing
    live.optimizer = own
    if type(made) is not type(own):
        raise JobError(f"A script keeps its {type(own).__name__} optimizer; it cannot be replaced by {type(made).__name__}.")
    places: list[dict[str, Any]] = [*own.param_groups, own.defaults]
    before = [{name: place.get(name) for name in FLAGS} for place in places]
    for mine, theirs in zip(own.param_groups, made.param_groups, strict=True):
        for name in FLAGS:
            if name in theirs:
                mine[name] = theirs[name]
    for name in FLAGS:
        if name in made.defaults:
            own.defaults[name] = made.defaults[name]

    def undo() -> None:
        for place, flags in zip(places, before, strict=True):
            place.update({name: value for name, value in flags.items() if name in place})

    return undo
