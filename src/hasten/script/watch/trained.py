"""Tell what a forward pass is for: training, or evaluation."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from hasten.script.watch.record import FORWARD, TENTATIVE, VALIDATION

MAX_KNOWN = 4096
"""Modules that are made anew at every step must not fill the memory."""


class Trained:
    """Knows the parameters that the optimizers change, and so which modules are being trained.

    Attributes:
        fetched_with_grad: Whether gradients were recorded when the last batch was fetched.
    """

    def __init__(self) -> None:
        self.fetched_with_grad = True
        self._ids: set[int] = set()
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._latest: Callable[[], Any] = lambda: None
        self._known: dict[int, tuple[weakref.ref[torch.nn.Module], bool]] = {}

    def learn(self, optimizer: torch.optim.Optimizer) -> bool:
        """Note what an optimizer changes; nothing the second time. Returns whether it is new."""
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
        """Whether a module holds parameters that are trained. Before the first step: any parameters at all."""
        known = self._known.get(id(module))  # not by the module itself, which may compare or hash in a way of its own
        if known is not None and known[0]() is module:
            return known[1]
        parameters = module.parameters()
        found = any(id(item) in self._ids for item in parameters) if self._ids else next(parameters, None) is not None
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._known[id(module)] = (weakref.ref(module), found)
        return found

    def kind(self, module: torch.nn.Module, *, evaluating: bool) -> int:
        """The phase of a forward pass that begins now.

        Args:
            module: The outermost module that is called.
            evaluating: Whether an evaluation is under way, for what holds no parameters, such as a loss.
        """
        grad = torch.is_grad_enabled()
        if not self.holds(module):
            return VALIDATION if evaluating and not grad else FORWARD
        if module.training:
            # A generator, a teacher or a target network runs without gradients too; an evaluation loop fetches so as well.
            return FORWARD if grad or self.fetched_with_grad else VALIDATION
        # Layers may be frozen by `eval()` in training; whether `backward` follows tells.
        return TENTATIVE if grad else VALIDATION
