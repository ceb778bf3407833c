"""Keep the initial state of a run in memory, so that the run can be restarted."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch

from hasten.core.live import LiveJob


class InitialState:
    """A copy of a run's initial state."""

    def __init__(self, live: LiveJob) -> None:
        self.model = {name: _cloned(value) for name, value in live.model.state_dict().items()}
        self.buffers = {name: value.detach().clone() for name, value in live.model.named_buffers()}
        groups = live.optimizer.param_groups
        self.groups = [{k: copy.deepcopy(v) for k, v in group.items() if k not in _NOT_STATE} for group in groups]
        self.state = _copied_state(live.optimizer.state)
        self.schedule = type(live.scheduler)
        self.scheduler = copy.deepcopy(live.scheduler.state_dict()) if live.scheduler else None
        self.scaler = copy.deepcopy(live.scaler.state_dict()) if live.scaler else None

    def restore(self, live: LiveJob) -> None:
        """Restore the live job to this state."""
        live.optimizer.zero_grad(set_to_none=True)
        live.model.load_state_dict(self.model)
        with torch.no_grad():
            for name, value in live.model.named_buffers():  # including buffers that are not persistent
                if name in self.buffers and value.shape == self.buffers[name].shape:
                    value.copy_(self.buffers[name])
        live.optimizer.state.clear()
        live.optimizer.state.update(_copied_state(self.state))
        if type(live.scheduler) is self.schedule:  # otherwise an undo has set another schedule, with its own rates
            for group, saved in zip(live.optimizer.param_groups, self.groups, strict=True):
                group.update(copy.deepcopy(saved))
            if live.scheduler and self.scheduler is not None:
                live.scheduler.load_state_dict(copy.deepcopy(self.scheduler))
        if live.scaler and self.scaler is not None:
            live.scaler.load_state_dict(self.scaler)


_NOT_STATE = ("params", "fused", "foreach")
"""Keys of a parameter group that select an implementation and are not part of the training state."""


def _cloned(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else copy.deepcopy(value)


def _copied_state(state: Mapping[Any, Any]) -> dict[Any, Any]:
    """Copy the optimizer's state per parameter. Some optimizers (Adagrad) have state before the first step."""
    return {parameter: copy.deepcopy(entries) for parameter, entries in state.items()}
