"""Continue a script without the techniques of its plan if one of them makes a call fail.

A failed call of the model is repeated without the plan, from the same random numbers and buffers. If it fails again, the
error is the script's own: the script gets that error, and the plan stays. A failed backward pass cannot be repeated, because
the script computed the loss. If a technique caused the failure, the gradients of that pass are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from hasten.core.blame import blamed
from hasten.core.live import LiveJob, Technique
from hasten.core.seams import Seam, Undo
from hasten.core.seeding import KeptGenerators
from hasten.core.user_code import error_words
from hasten.train.guards.oom import ChangedBuffers

IN_CALLS = frozenset({Seam.MODEL, Seam.BATCH, Seam.FORWARD, Seam.BACKWARD})
"""Seams whose techniques act in calls of the model or in backward passes."""
LEARNS = 3
"""Number of calls after which it is known which buffers and generators a call of a module changes."""
MOST_STATES = 16
"""Largest number of modules for which that is remembered."""

Failed = Callable[[str, str], None]


class Fallback:
    """Makes calls under a plan, and repeats a failed one without it.

    Args:
        live: The script's live job.
        failed: Called with the name of each technique that is stopped, and the reason.

    Attributes:
        on: Whether failed calls are repeated. If False, errors are raised, as trials need it.
        stopped: Names of the techniques that were stopped.
    """

    def __init__(self, live: LiveJob, failed: Failed) -> None:
        self._live, self._failed = live, failed
        self.on = True
        self.stopped: list[str] = []
        self._states: dict[int, _CallState] = {}
        self._users: set[tuple[Any, ...]] = set()

    @property
    def armed(self) -> bool:
        """Whether a technique acts in calls of the model."""
        return self.on and any(item.card.seam in IN_CALLS for item, _ in self._live.applied)

    def call(self, module: nn.Module, planned: Callable[[], Any], plain: Callable[[], Any]) -> Any:
        """Return the result of `planned`; if it raises an error, that of `plain`, without the techniques from then on.

        Args:
            module: The module that is called.
            planned: Calls it under the plan.
            plain: Calls it as the script does.
        """
        if not self.armed:
            return planned()
        state = self._states.get(id(module)) or _CallState(module, self._live.device)
        if len(self._states) < MOST_STATES:
            self._states[id(module)] = state
        state.keep()
        try:
            result = planned()
        except Exception as error:
            where = _where(error)
            if where in self._users:
                raise
            why, guilty = error_words(error), self._blamed(error)
        else:
            if module.training and torch.is_grad_enabled():  # dropout of layers draws in training alone
                state.learn()
            return result
        state.put_back()  # outside of the block above, which would keep the failed call's tensors alive
        taken = self._take_off(IN_CALLS)
        try:
            result = plain()
        except Exception:
            self._users.add(where)  # the script's own: it is not tried again
            self._put_on(taken)
            raise
        self._stop(taken, guilty, why)
        return result

    def backward(self, original: Callable[[], Any]) -> Any:
        """Run a backward pass. If a technique makes it fail, restore the gradients and continue without the techniques."""
        if not self.armed:
            return original()
        before = [(p, p.grad, None if p.grad is None else p.grad._version) for p in self._live.model.parameters()]  # noqa: SLF001 - public only in C++
        try:
            return original()
        except Exception as error:
            guilty = self._blamed(error)
            if not guilty:
                raise
            why = error_words(error)
        for parameter, gradient, version in before:
            parameter.grad = gradient
            if gradient is not None and gradient._version != version:  # noqa: SLF001 - as above
                gradient.detach().zero_()
        self._stop(self._take_off(IN_CALLS), guilty, f"{why} (the gradients of this backward pass were dropped)")
        return None

    def step(self, original: Callable[[], Any], optimizer: Optimizer, restore_flags: Callable[[], Undo]) -> Any:
        """Run an optimizer step. If its implementation fails, update the remaining parameters with the script's own one.

        Args:
            original: The step.
            optimizer: The optimizer.
            restore_flags: Restores the flags of the script, and returns a function that sets those of the plan again.
        """
        versions = {id(p): p._version for group in optimizer.param_groups for p in group["params"]}  # noqa: SLF001 - as above
        try:
            return original()
        except Exception as error:
            if not self.on or not any(item.card.seam is Seam.OPTIMIZER for item, _ in self._live.applied):
                raise
            why, guilty, done = error_words(error), self._blamed(error), _groups_done(error, optimizer)
        entries = [entry for entry in self._live.applied if entry[0].card.seam is Seam.OPTIMIZER]
        again = restore_flags()
        given = [group["params"] for group in optimizer.param_groups]
        for group in optimizer.param_groups[:done]:
            group["params"] = []
        for group in optimizer.param_groups[done:]:
            group["params"] = [p for p in group["params"] if p._version == versions.get(id(p), p._version)]  # noqa: SLF001 - as above
        try:
            result = original()
        except Exception:
            again()
            raise
        finally:
            for group, parameters in zip(optimizer.param_groups, given, strict=True):
                group["params"] = parameters
        for entry in entries:
            self._live.applied.remove(entry)
        self._stop([item for item, _ in entries], guilty, why)
        return result

    def _take_off(self, seams: frozenset[Seam]) -> list[Technique]:
        """Undo the techniques of these seams, the last one first. Return them in the order in which they were applied."""
        taken: list[Technique] = []
        for entry in reversed(self._live.applied[:]):
            if entry[0].card.seam in seams:
                self._live.applied.remove(entry)
                with suppress(Exception):  # the rest must be undone too
                    entry[1]()
                taken.insert(0, entry[0])
        return taken

    def _put_on(self, taken: Sequence[Technique]) -> None:
        for item in taken:
            try:
                self._live.apply(item)
            except Exception as error:  # noqa: BLE001 - the script continues without it
                self._stop([item], [item.card.name], error_words(error))

    def _stop(self, taken: Sequence[Technique], certain: Sequence[str], why: str) -> None:
        """Report the techniques that were stopped: those to blame with the reason, the others as stopped with them."""
        names = [item.card.name for item in taken]
        guilty = [name for name in names if name in certain] or names
        for name in names:
            self.stopped.append(name)
            among = why if len(guilty) == 1 else f"one of {', '.join(guilty)} failed: {why}"
            self._failed(name, among if name in guilty else f"stopped together with {', '.join(guilty)}")

    def _blamed(self, error: BaseException) -> list[str]:
        return blamed(error, [item for item, _ in self._live.applied])


class _CallState:
    """What a call of a module may change: buffers and random generators. Only what does change is copied later on.

    Args:
        module: The module. It is kept alive, because its identity is the key of this state.
        device: The device of the model.
    """

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self._module, self._calls = module, 0
        self._buffers = ChangedBuffers(module)
        self._generators = KeptGenerators(device)

    def keep(self) -> None:
        """Copy the state before a call."""
        self._buffers.keep()
        self._generators.keep()

    def learn(self) -> None:
        """After one of the first calls, find out what it changed."""
        if self._calls >= LEARNS:
            return
        self._calls += 1
        if self._calls == LEARNS:
            self._buffers.learn()
            self._generators.learn()

    def put_back(self) -> None:
        """Restore the state from before the call."""
        self._buffers.put_back()
        self._generators.put_back()


def _groups_done(error: BaseException, optimizer: Optimizer) -> int:
    """Return how many parameter groups a failed step had updated. Fused kernels leave no other trace of an update."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_name == "step" and trace.tb_frame.f_locals.get("self") is optimizer:
            failed = trace.tb_frame.f_locals.get("group")
            return next((number for number, group in enumerate(optimizer.param_groups) if group is failed), 0)
        trace = trace.tb_next
    return 0


def _where(error: BaseException) -> tuple[Any, ...]:
    """Return the kind of an error and the line that raised it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = (trace.tb_frame.f_code, trace.tb_lineno) if trace is not None else ()
    return (type(error), *place)
