"""Tell whether a forward pass is for training or for evaluation."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from hasten.script.watch.record import ACTING, FORWARD, TENTATIVE, VALIDATION

MAX_KNOWN = 4096
"""Limit of known modules, for scripts that create new ones at every step."""


class Trained:
    """Knows the parameters that the optimizers change, and so which modules are being trained.

    Attributes:
        fetched_with_grad: Whether gradients were enabled when the last batch was fetched.
        gradientless: Whether the script trains without gradients, so that each pass is for training.
    """

    def __init__(self) -> None:
        self.fetched_with_grad = True
        self.gradientless = False
        self._ids: set[int] = set()
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._latest: Callable[[], Any] = lambda: None
        self._known: dict[int, tuple[weakref.ref[torch.nn.Module], bool]] = {}

    def learn(self, optimizer: torch.optim.Optimizer) -> bool:
        """Register the parameters of an optimizer. Returns whether the optimizer is new."""
        if self._latest() is optimizer:
            return False
        self._latest = weakref.ref(optimizer)
        if optimizer in self._optimizers:
            return False
        self._optimizers.add(optimizer)
        self._ids.update(id(parameter) for group in optimizer.param_groups for parameter in group["params"])
        self._known.clear()
        return True

    def holds(self, module: torch.nn.Module) -> bool:
        """Return whether a module contains trained parameters. Before the first step, any parameters count."""
        known = self._known.get(id(module))  # by id, because a module may define its own comparison or hash
        if known is not None and known[0]() is module:
            return known[1]
        parameters = module.parameters()
        trains = any(id(item) in self._ids for item in parameters) if self._ids else next(parameters, None) is not None
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._known[id(module)] = (weakref.ref(module), trains)
        return trains

    def kind(self, module: torch.nn.Module, *, evaluating: bool, acting: bool = False) -> int:
        """Return the phase of a forward pass that starts now.

        Args:
            module: The outermost module that is called.
            evaluating: Whether an evaluation is in progress. Decides for modules without parameters, such as a loss.
            acting: Whether the trained model was called without gradients, and nothing with gradients since.
        """
        grad = torch.is_grad_enabled()
        if self.gradientless:
            return FORWARD
        if not self.holds(module):
            return FORWARD if grad else VALIDATION if evaluating else ACTING if acting else FORWARD
        if module.training:
            # A generator, teacher or target network also runs without gradients; so does fetching in an evaluation loop.
            return FORWARD if grad else ACTING if self.fetched_with_grad else VALIDATION
        # Layers may be frozen with `eval()` during training; whether a backward pass follows decides.
        return TENTATIVE if grad else VALIDATION
