"""Continue a script without the techniques of its plan if one of them makes a call fail.

A failed call of the model is repeated without the plan, from the same random numbers and buffers. If it fails again, the
error is the script's own: the script gets that error, and the plan stays. A failed backward pass cannot be repeated, because
the script computed the loss. If a technique caused the failure, the gradients of that pass are dropped.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from hasten.core.card import Trait
from hasten.core.live import LiveJob, Technique
from hasten.core.seams import Seam, Undo
from hasten.train.guards.oom import ChangedBuffers

IN_CALLS = frozenset({Seam.MODEL, Seam.BATCH, Seam.FORWARD, Seam.BACKWARD})
"""Seams whose techniques act in calls of the model or in backward passes."""
LEARNS = 3
"""Number of calls after which it is known which buffers and generators a call of a module changes."""
MOST_STATES = 16
"""Largest number of modules for which that is remembered."""
_TECHNIQUES = "hasten.optimizations."
_COMPILER = ("torch._dynamo", "torch._inductor", "torch._functorch")
_SIXTEEN_BIT = ("bfloat16", "float16", "half", "dtype", "scalartype")

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
            why, blamed = _words(error), self._blamed(error)
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
        self._stop(taken, blamed, why)
        return result

    def backward(self, original: Callable[[], Any]) -> Any:
        """Run a backward pass. If a technique makes it fail, restore the gradients and continue without the techniques."""
        if not self.armed:
            return original()
        before = [(p, p.grad, None if p.grad is None else p.grad._version) for p in self._live.model.parameters()]  # noqa: SLF001 - public only in C++
        try:
            return original()
        except Exception as error:
            blamed = self._blamed(error)
            if not blamed:
                raise
            why = _words(error)
        for parameter, gradient, version in before:
            parameter.grad = gradient
            if gradient is not None and gradient._version != version:  # noqa: SLF001 - as above
                gradient.detach().zero_()
        self._stop(self._take_off(IN_CALLS), blamed, f"{why} (the gradients of this backward pass were dropped)")
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
            why, blamed, done = _words(error), self._blamed(error), _groups_done(error, optimizer)
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
        self._stop([item for item, _ in entries], blamed, why)
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
                self._stop([item], [item.card.name], _words(error))

    def _stop(self, taken: Sequence[Technique], blamed: Sequence[str], why: str) -> None:
        """Report the techniques that were stopped: those to blame with the reason, the others as stopped with them."""
        names = [item.card.name for item in taken]
        guilty = [name for name in names if name in blamed] or names
        for name in names:
            self.stopped.append(name)
            among = why if len(guilty) == 1 else f"one of {', '.join(guilty)} failed: {why}"
            self._failed(name, among if name in guilty else f"stopped together with {', '.join(guilty)}")

    def _blamed(self, error: BaseException) -> list[str]:
        """Return the names of the techniques that certainly caused an error; empty if that is not known."""
        modules = [str(frame.get("__name__", "")) for frame in _globals(error.__traceback__)]
        items = [item for item, _ in self._live.applied]
        named = {module.removeprefix(_TECHNIQUES) for module in modules if module.startswith(_TECHNIQUES)}
        if found := [item.card.name for item in items if type(item).__module__.removeprefix(_TECHNIQUES) in named]:
            return found
        if any(module.startswith(_COMPILER) for module in modules):
            return [item.card.name for item in items if Trait.COMPILES in item.card.traits]
        if any(word in str(error).lower() for word in _SIXTEEN_BIT):
            return [item.card.name for item in items if Trait.LOWER_PRECISION in item.card.traits]
        return []


class _CallState:
    """What a call of a module may change: buffers and random generators. Only what does change is copied later on.

    Args:
        module: The module. It is kept alive, because its identity is the key of this state.
        device: The device of the model.
    """

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self._module, self._device, self._calls = module, device, 0
        self._buffers = ChangedBuffers(module)
        self._python: Any = None
        self._numpy: Any = None
        self._moves = [True, True]

    def keep(self) -> None:
        """Copy the state before a call."""
        self._buffers.keep()
        self._torch = torch.get_rng_state()
        self._on_device = torch.cuda.get_rng_state(self._device) if self._device.type == "cuda" else None
        if self._moves[0]:
            self._python = random.getstate()
        if self._moves[1]:
            self._numpy = np.random.get_state()  # noqa: NPY002 - user code draws from this legacy generator

    def learn(self) -> None:
        """After one of the first calls, find out what it changed."""
        if self._calls >= LEARNS:
            return
        self._calls += 1
        if self._calls == LEARNS:
            self._buffers.learn()
            self._moves = [self._python != random.getstate(), _moved(self._numpy)]

    def put_back(self) -> None:
        """Restore the state from before the call."""
        self._buffers.put_back()
        torch.set_rng_state(self._torch)
        if self._on_device is not None:
            torch.cuda.set_rng_state(self._on_device, self._device)
        if self._moves[0]:
            random.setstate(self._python)
        if self._moves[1]:
            np.random.set_state(self._numpy)  # noqa: NPY002 - as above


def _moved(before: Any) -> bool:
    now: Any = np.random.get_state()  # noqa: NPY002 - as above
    return bool(before[2] != now[2] or not np.array_equal(before[1], now[1]))


def _globals(trace: TracebackType | None) -> Iterator[dict[str, Any]]:
    while trace is not None:
        yield trace.tb_frame.f_globals
        trace = trace.tb_next


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


def _words(error: BaseException) -> str:
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message[:300]}".removesuffix(": ")
