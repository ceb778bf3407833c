"""Wrap the places where a training loop can be observed from outside.

A seam calls the wrapped function and adds only two clock readings. A failure inside a seam stops the watching, never the
script.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import logging
import sys
import weakref
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch.nn.modules.module import Module
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import dataloader

from hasten.script import steps
from hasten.script.entry.tracebacks import without_ours
from hasten.script.patches import Patches, guarded, handle_error, harmless
from hasten.script.source_lines import calling_line, makes_samples, users_line
from hasten.script.watch.by_hand import PASSES, HandUpdates, by_tensor, inside_transform
from hasten.script.watch.fetch import Fetch
from hasten.script.watch.frameworks import Frameworks
from hasten.script.watch.lead_optimizer import Serials
from hasten.script.watch.losses import Losses
from hasten.script.watch.record import (
    ACTING,
    BACKWARD,
    FORWARD,
    GAP,
    LOGGING,
    MOVED,
    OPTIMIZER,
    OTHER,
    VALIDATION,
    Recorder,
)
from hasten.script.watch.saves import Saves
from hasten.script.watch.trackers import Tracker, Trackers

READS = ("item", "cpu", "tolist")
"""Not `__float__`: torch warns in it, and would name the line of the innermost Python function, which would be Hasten's."""
MOVES = ("to", "cuda", "copy_")

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class Seams:
    """All watch seams of one process.

    Args:
        recorder: Receives the phases.
        fetch: The seam of the loader.

    Attributes:
        on_failure: Called once, while an internal error in a seam is handled. Watching continues.
        losses: The losses of the last backward passes.
        by_hand: The changes of parameters without an optimizer.
        optimizer: Returns the optimizer that stepped last, while it exists.
    """

    def __init__(self, recorder: Recorder, fetch: Fetch) -> None:
        self.recorder = recorder
        self.trained = fetch.trained
        self._fetch = fetch
        self._patches = Patches(self.failed)
        self._frameworks = Frameworks(recorder, self._patches)
        self._handles: list[Any] = []
        self._optimizer_s = 0.0
        self._serials = Serials()
        self.losses = Losses()
        self.by_hand = HandUpdates()
        recorder.before_phase = self._look
        self.optimizer: Callable[[], Optimizer | None] = _ignored
        self.on_failure: Callable[[], None] = _ignored
        self._trackers = Trackers(self._track, self.failed)
        self._marked = harmless(self.mark, self.failed)

    def install(self, *, hooks: bool = True, tensor_methods: bool = True, excepthook: bool = True) -> None:
        """Install all seams.

        Args:
            hooks: Also install optimizer hooks. If False, the caller must call `before_step` and `after_step`.
            tensor_methods: Also wrap methods of tensors. Must be False if compiled graphs already contain these methods.
            excepthook: Also wrap `sys.excepthook`. If False, the caller must remove Hasten's frames from tracebacks.
        """
        recorder, put = self.recorder, self._patches.put
        if hooks:
            self._handles = [
                register_optimizer_step_pre_hook(harmless(self.before_step, self.failed)),
                register_optimizer_step_post_hook(harmless(self.after_step, self.failed)),
            ]
        put(Module, "__call__", functools.partial(_forward, self), guards=False)
        put(dataloader._BaseDataLoaderIter, "__next__", self._fetch.wrap)  # noqa: SLF001 - all batches pass through it
        if self._fetch.replay is not None:
            put(dataloader.DataLoader, "__iter__", self._fetch.replay.wrap)
        for name in ("__init__", "_shutdown_workers"):
            put(dataloader._MultiProcessingDataLoaderIter, name, self._fetch.wrap_start)  # noqa: SLF001 - as above
        put(torch.autograd, "backward", functools.partial(_backward, self))  # Tensor.backward calls it
        put(torch.autograd, "grad", functools.partial(_gradients, self))
        for owner in (Optimizer, Module):
            put(owner, "zero_grad", functools.partial(_timed, recorder, OPTIMIZER))
        put(builtins, "print", functools.partial(_noted, recorder, LOGGING, "print"))
        put(logging.Logger, "handle", functools.partial(_noted, recorder, LOGGING, "logging"))
        Saves(recorder).install(self._patches)
        put(torch, "compile", self._compiling)
        self._patches.also(self._trackers.end)
        self._trackers.begin()
        if excepthook:
            put(sys, "excepthook", without_ours)
        steps.listen(self._marked)
        for name in READS if tensor_methods else ():
            put(torch.Tensor, name, functools.partial(_read, recorder, name))
        for name in MOVES if tensor_methods else ():
            put(torch.Tensor, name, functools.partial(_move, recorder, name))

    def rest(self) -> None:
        """Remove all seams that can be removed inside an optimizer hook. The next forward pass removes the others."""
        self._trackers.end()
        self._patches.restore(keep=Module)

    def remove(self) -> None:
        """Remove all seams whose wrapper is still the outermost."""
        self._patches.restore()
        steps.unlisten(self._marked)
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def failed(self, _error: Exception | None = None) -> None:
        """Report that an internal error was raised in a seam and is being handled."""
        report, self.on_failure = self.on_failure, _ignored
        report()

    def mark(self) -> None:
        """End a step because the loop marked its end."""
        self.by_hand.active = False
        self._frameworks.install()
        self.recorder.mark()

    def before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Arguments | None:
        """Start the phase of an optimizer step. Returns the arguments with the closure timed, or None if it has none."""
        recorder = self.recorder
        self.by_hand.active = False
        if not recorder.active or recorder.light:
            return None
        if self.trained.learn(optimizer):
            self._frameworks.install()
        recorder.before_step()
        self._optimizer_s = recorder.current[OPTIMIZER]
        return with_timed_closure(recorder, optimizer, args, kwargs) if kwargs or len(args) > 1 else None

    def after_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        """End the phase of an optimizer step."""
        recorder = self.recorder
        if self.optimizer() is not optimizer:
            self.optimizer = weakref.ref(optimizer)
        if recorder.light:
            recorder.after_light_step(self._serials.of(optimizer))
        elif recorder.here():
            recorder.leave(OTHER)
            seconds = recorder.current[OPTIMIZER] - self._optimizer_s  # without the time of the closure
            if (worth := recorder.worth_a_look("optimizer", seconds)) is not None and (line := users_line()) is not None:
                recorder.note("optimizer", *line, worth[1], worth[0])
            recorder.after_step(self._serials.of(optimizer))

    def _look(self, phase: int, key: Hashable | None = None) -> None:
        """End a step if parameters have changed since the last backward pass, and a phase follows."""
        key = self.by_hand.changed() if key is None else key
        if key is not None:
            self.recorder.changed(key, "passes" if key == PASSES else "parameters", before=phase)

    def _track(self, tracker: Tracker, owner: Any) -> None:
        """Count calls of a tracker's reporting methods as logging."""
        for name in tracker.methods(owner):
            self._patches.put(owner, name, functools.partial(_noted, self.recorder, LOGGING, tracker.label))

    def _compiling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Restore the methods of tensors when the script compiles, because compiled graphs contain them."""

        @functools.wraps(original)
        def compile_seam(*args: Any, **kwargs: Any) -> Any:
            self._patches.restore(owner=torch.Tensor)
            self._patches.restore(owner=torch.autograd, name="grad")
            rules = sys.modules.get("torch._dynamo.trace_rules")
            forget = getattr(getattr(rules, "get_tensor_method", None), "cache_clear", None)
            if forget is not None:
                forget()
            return original(*args, **kwargs)

        return compile_seam


def with_timed_closure(
    recorder: Recorder, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Arguments | None:
    """Return an optimizer step's arguments, the optimizer first, with the closure timed. None if there is no closure.

    Time inside a closure belongs to the phases in it. Lightning trains inside the closure: without this, losses, prints and
    moved batches would count as the optimizer's time.
    """
    if callable(kwargs.get("closure")):
        return args, {**kwargs, "closure": _timed_closure(recorder, kwargs["closure"])}
    if len(args) > 1 and callable(args[1]) and _takes_closure(type(optimizer).step):
        return (args[0], _timed_closure(recorder, args[1]), *args[2:]), kwargs
    return None


@functools.lru_cache(maxsize=8)
def _takes_closure(step: Any) -> bool:
    code = getattr(inspect.unwrap(step), "__code__", None)
    return code is not None and code.co_varnames[1:2] == ("closure",)


def _timed_closure(recorder: Recorder, closure: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(closure)
    def closure_seam(*args: Any, **kwargs: Any) -> Any:
        if recorder.free() or not recorder.takes():  # not inside an optimizer step
            return closure(*args, **kwargs)
        recorder.leave(OTHER)
        result = closure(*args, **kwargs)
        if recorder.free():
            recorder.enter(OPTIMIZER)
        return result

    return closure_seam


def _timed(recorder: Recorder, phase: int, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def timed_seam(*args: Any, **kwargs: Any) -> Any:
        if recorder.light or not recorder.free():
            return original(*args, **kwargs)
        recorder.enter(phase)
        try:
            return original(*args, **kwargs)
        finally:
            recorder.leave()

    return timed_seam


def _noted(recorder: Recorder, phase: int, what: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def noted_seam(*args: Any, **kwargs: Any) -> Any:
        if not recorder.free():
            return original(*args, **kwargs)
        recorder.enter(phase)
        try:
            return original(*args, **kwargs)
        finally:
            seconds = recorder.leave()
            line = users_line()
            if line is not None:
                recorder.note(what, *line, seconds)

    return noted_seam


def _backward(seams: Seams, original: Callable[..., Any]) -> Callable[..., Any]:
    recorder = seams.recorder

    @functools.wraps(original)
    def backward_seam(*args: Any, **kwargs: Any) -> Any:
        if recorder.light or not recorder.takes():
            return original(*args, **kwargs)
        recorder.enter(BACKWARD)
        try:
            tensors = args[0] if args else kwargs.get("tensors")
            seams.losses.note(tensors, recorder.num_steps + 1)
            seams.by_hand.before_backward(tensors)
            result = original(*args, **kwargs)
            seams.by_hand.after_backward()
        finally:
            recorder.leave(GAP)
        recorder.after_backward()
        return result

    return backward_seam


def _gradients(seams: Seams, original: Callable[..., Any]) -> Callable[..., Any]:
    """Time `torch.autograd.grad`. With `create_graph`, the gradients are a part of the loss that is computed next."""
    recorder = seams.recorder

    @functools.wraps(original)
    def gradients_seam(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if recorder.light or not recorder.takes():
            return original(outputs, inputs, *args, **kwargs)
        transforms = inside_transform()
        part = bool(args[2] if len(args) > 2 else kwargs.get("create_graph")) and not transforms
        recorder.enter(BACKWARD)
        try:
            if not part:
                seams.by_hand.before_backward(None if transforms else outputs)
            result = original(outputs, inputs, *args, **kwargs)
            if not part:
                seams.by_hand.after_backward({} if transforms else by_tensor(inputs, result))
        finally:
            recorder.leave(FORWARD if part else GAP)
        if not part:
            recorder.after_backward()
        return result

    return gradients_seam


def _forward(seams: Seams, original: Callable[..., Any]) -> Callable[..., Any]:
    """Time the outermost call of a module. Calls of inner modules and in other threads cost one check."""
    recorder, trained, inside = seams.recorder, seams.trained, False

    def outermost(theirs: Callable[..., Any]) -> Callable[..., Any]:
        def outermost_seam(*args: Any, **kwargs: Any) -> Any:
            nonlocal inside
            evaluating = recorder.idle == VALIDATION
            try:
                phase = trained.kind(args[0], evaluating=evaluating, acting=recorder.idle == ACTING)
            except Exception:  # noqa: BLE001 - an unusual kind of module is still timed, classified without it
                phase = VALIDATION if evaluating and not torch.is_grad_enabled() else FORWARD
                seams.failed()
            inside = True
            if (changed := seams.by_hand.called(args[0])) is not None:
                trained.gradientless = True
                seams._look(FORWARD, changed)  # noqa: SLF001 - a part of the seams
                phase = FORWARD
            recorder.enter(phase)
            recorder.count_acts(phase, users_line)
            try:
                return theirs(*args, **kwargs)
            finally:
                inside = False
                seconds = recorder.leave(phase)
                if phase == VALIDATION and (line := users_line()) is not None:
                    recorder.note("validation", *line, seconds)

        return outermost_seam

    guard = guarded(outermost, original, seams.failed)

    @functools.wraps(original)
    def forward_seam(*args: Any, **kwargs: Any) -> Any:
        try:
            passes = inside or (recorder.light and torch.is_grad_enabled() and _trains(args[0])) or not recorder.takes()
            if passes:
                recorder.passed += 1
                if not recorder.active:
                    seams.remove()
        except Exception as error:  # noqa: BLE001 - handle_error raises it again if it is not Hasten's
            passes = True
            handle_error(error, seams.failed)
        return original(*args, **kwargs) if passes else guard(*args, **kwargs)

    return forward_seam


def _trains(module: Any) -> bool:
    return bool(getattr(module, "training", False))


def _read(recorder: Recorder, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Time the reading of a tensor's value. On an accelerator the host waits here for all queued work of the device."""

    @functools.wraps(original)
    def read_seam(*args: Any, **kwargs: Any) -> Any:
        if not recorder.free():
            recorder.passed += 1
            return original(*args, **kwargs)
        if makes_samples():
            return original(*args, **kwargs)
        line = calling_line()
        if line is not None and recorder.idle == ACTING:
            recorder.acted()
        recorder.enter(recorder.idle if line is None or recorder.idle in {VALIDATION, ACTING} else LOGGING)
        try:
            return original(*args, **kwargs)
        finally:
            seconds = recorder.leave_reading()
            if line is not None:
                recorder.note(f".{name}()", *line, seconds)

    return read_seam


def _move(recorder: Recorder, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Time the moving of a tensor. A move within the same device is not a transfer."""

    @functools.wraps(original)
    def move_seam(*args: Any, **kwargs: Any) -> Any:
        if not recorder.free() or (recorder.light and torch.is_grad_enabled()):
            recorder.passed += 1
            return original(*args, **kwargs)
        recorder.enter(MOVED)
        try:
            result = original(*args, **kwargs)
            source = args[1] if name == "copy_" and len(args) > 1 else args[0]
            if getattr(source, "device", None) == getattr(result, "device", None):
                recorder.rename(recorder.idle)
            return result
        finally:
            seconds = recorder.leave()
            line = calling_line()
            weight = recorder.stands_for if torch.is_grad_enabled() else 1
            if line is not None and seconds > 0 and weight:
                recorder.note(f".{name}()", *line, seconds * weight, weight)

    return move_seam


def _ignored() -> None:
    return None
