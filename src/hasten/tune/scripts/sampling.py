"""Sample what a script's first steps under a plan do: gradients as its optimizer gets them, and what it makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.optim import Optimizer

from hasten.core.live import LiveJob
from hasten.tune.proof.numerics import UpdateSample
from hasten.tune.trials.gradients import MAX_COORDINATES, group_settings


class StepSampler:
    """Notes the steps between `before` and `after`.

    Args:
        live: The script's live job, its model and optimizer known.
    """

    def __init__(self, live: LiveJob) -> None:
        self._optimizer: Optimizer = live.optimizer
        names, parameters = zip(*live.model.named_parameters(), strict=True)
        self._names: tuple[str, ...] = tuple(name.replace("_orig_mod.", "") for name in names)
        self._parameters: list[torch.Tensor] = list(parameters)
        self._old: list[torch.Tensor] = []
        self._rows: list[npt.NDArray[np.float32]] = []
        self._moved: list[list[float]] = []
        self._settings: list[list[dict[str, float]]] = []
        total = sum(parameter.numel() for parameter in self._parameters)
        self._every = max(-(-total // MAX_COORDINATES), 1)

    def before(self) -> None:
        """The optimizer is about to step."""
        self._rows.append(np.concatenate([self._chosen(parameter) for parameter in self._parameters]))
        self._settings.append(group_settings(self._optimizer, self._parameters))
        self._old = [parameter.detach().clone() for parameter in self._parameters]

    def after(self) -> None:
        """It has stepped."""
        moves = zip(self._parameters, self._old, strict=True)
        self._moved.append([float((now.detach() - old).float().square().mean().sqrt()) for now, old in moves])
        self._old = []

    @property
    def rows(self) -> npt.NDArray[np.float32]:
        """Gradients, a row a step, `[steps, coordinates]`; of a large model every so many-th coordinate."""
        return np.stack(self._rows)

    def updates(self) -> dict[str, Any]:
        """What the steps did to the parameters, as `UpdateSample` has it."""
        sample = UpdateSample(
            names=self._names,
            sizes=tuple(parameter.numel() for parameter in self._parameters),
            moved=self._moved,
            settings=self._settings,
            draws=None,
        )
        return sample.to_dict()

    def _chosen(self, parameter: torch.Tensor) -> npt.NDArray[np.float32]:
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        flat = gradient.detach().float().cpu().contiguous().reshape(-1)
        return flat[:: self._every].numpy().copy()
