"""Fill a live job from a running script, and apply a plan at the job's seams.

A plan is applied at three moments: at the start, settings that PyTorch reads only then; with the first training loader,
everything that acts on data; just before the first optimizer step, when model and optimizer are known, everything else.
Errors in Hasten are recorded in `failures`, and the script continues without the optimization.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import Module
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from hasten.core.batch import map_tensors
from hasten.core.card import Trait
from hasten.core.errors import MachineError
from hasten.core.layouts import shape_of
from hasten.core.optimization import Optimization
from hasten.core.plan import Plan
from hasten.core.seams import DATA_SEAMS, Seam, Undo, undo_nothing
from hasten.script.data.loading import Loading
from hasten.script.output.background_save import BackgroundSaving
from hasten.script.patches import Patches, guarded, handle_error, harmless
from hasten.script.plan.fallback import IN_CALLS, Fallback
from hasten.script.plan.live import FLAGS, main_module, script_live, set_flags
from hasten.script.plan.reach import out_of_reach, reached
from hasten.script.watch.by_hand import (
    NO_OPTIMIZER_WORDS,
    ByHand,
    HandUpdates,
    by_tensor,
    inside_transform,
    plain_loss,
)
from hasten.script.watch.lead_optimizer import Leader, Serials
from hasten.script.watch.record import is_autograds
from hasten.script.watch.seams import Arguments, Seams
from hasten.script.watch.trained import Trained

STEP_SEAMS = tuple(seam for seam in Seam if seam not in DATA_SEAMS)
MAX_CALLED = 16
"""Number of called modules among which the model is searched."""
TRIES = 3
"""Number of optimizer steps in which the model is searched. A first step may come before the model is called."""
HALF = (torch.bfloat16, torch.float16)


class Host:
    """All parts of a plan that act in a script's process.

    Args:
        plan: Plan to apply; none by default.

    Attributes:
        live: The live job: the observed model, optimizer and loader.
        scratch: Folder to which loader workers write when they are ready; None if they do not.
        watching: Watch seams, installed without optimizer hooks of their own.
        opened: Whether model and optimizer are known and the plan is applied.
        steps: Number of steps of the leading optimizer, or of changes of the parameters by hand.
        backwards: Number of backward passes.
        shapes: Shapes of the tensors in the model's last call.
        on_open: Called once, just before the first step, after the plan was applied.
        on_stop: Called when an applied optimization had to be stopped.
        on_before: Called before every step of the leading optimizer, or after every backward pass of a script without one.
        on_step: Called after every step, in the script's own thread.
        on_loss: Called with every scalar from which a backward pass starts.
        on_failure: Called once, while an internal error in a seam is handled. The script continues.
    """

    def __init__(self, plan: Plan | None = None) -> None:
        self.plan = plan or Plan()
        self.live = script_live()
        self.trained = Trained()
        self.failures: dict[str, str] = {}
        self.scratch: Path | None = None
        self.watching: Seams | None = None
        self.opened = False
        self.steps = self.backwards = 0
        self.shapes: tuple[tuple[int, ...], ...] = ()
        self.on_open: Callable[[], None] = _nothing
        self.on_stop: Callable[[], None] = _nothing
        self.on_before: Callable[[], None] = _nothing
        self.on_step: Callable[[], None] = _nothing
        self.on_loss: Callable[[torch.Tensor], None] = _ignored
        self.on_failure: Callable[[], None] = _nothing
        self._loading = Loading(self.live, self.plan, self._fail)
        self._loading.on_moved = self._forget
        self._saving = BackgroundSaving(self.live)
        self.fallback = Fallback(self.live, self._stopped)
        self._restore_flags: Undo = undo_nothing
        self._last_call: tuple[Any, ...] | None = None
        self._patches, self._passes = Patches(self._failed), Patches(self._failed)
        self._handles: list[Any] = []
        self._called: dict[int, nn.Module] = {}
        self._lead, self._serials = Leader(), Serials()
        self._by_hand = HandUpdates()
        self._inside = self._in_backward = self._sixteen_bit = self._acts = False
        self._tries = 0
        self._pid, self._thread = os.getpid(), threading.get_ident()
        self._working = False

    @property
    def applied(self) -> list[str]:
        """Names of the optimizations applied so far."""
        return [item.card.name for item, _ in self.live.applied]

    @property
    def stopped(self) -> list[str]:
        """Names of the optimizations that had to be stopped."""
        return [*self._loading.stopped, *self.fallback.stopped]

    @property
    def stale(self) -> str:
        """Reason why batches may have differed from those of the unchanged script; "" if none can have."""
        return self._loading.stale

    def begin(self) -> None:
        """Install the seams."""
        self._working = True
        self._handles = [
            register_optimizer_step_pre_hook(harmless(self._before, self._failed)),
            register_optimizer_step_post_hook(harmless(self._after, self._failed)),
        ]
        self._passes.put(Module, "__call__", self._calling, guards=False)
        self._passes.put(torch.Tensor, "backward", functools.partial(self._going_back, method=True))
        self._passes.put(torch.autograd, "backward", functools.partial(self._going_back, method=False))
        self._passes.put(torch.autograd, "grad", self._gradients)
        self._passes.put(Optimizer, "zero_grad", self._zeroing)
        self._passes.put(Module, "zero_grad", self._zeroing)
        if any(item.card.seam is Seam.OPTIMIZER for item in reached(self.plan)):
            for kind in _optimizers():
                self._patches.put(kind, "step", self._stepping, guards=False)
        self._loading.install(self._patches)
        self._saving.install(self._patches)
        disarm = weakref.WeakMethod(self._disarm)  # a fork handler cannot be unregistered, and must not keep the model alive
        os.register_at_fork(after_in_child=lambda: (method := disarm()) and method())

    def end(self, *, undo: bool = True) -> None:
        """Finish background work and remove all seams.

        Args:
            undo: Also undo the plan. Not needed if the process is about to end.
        """
        self._working = False
        if os.getpid() != self._pid:
            return
        for action in (self._saving.close, self._loading.close, self._take_off, *((self.live.undo_all,) if undo else ())):
            try:
                action()
            except Exception as error:  # noqa: BLE001 - the rest must end too
                self._failed(error)

    def prime(self, batches: int) -> int:
        """Fill sample caches with the samples of the next batches. Returns the number of samples."""
        return self._loading.prime(batches)

    def boundary(self) -> str:
        """Return how batches would differ from the script's in an epoch after a change; "" if they would not."""
        return self._loading.boundary()

    def rehearse(self) -> None:
        """Run event-driven optimizations once to obtain their evidence, because the next checkpoint may be far away."""
        self._saving.rehearse()

    def cut(self) -> dict[str, Any] | None:
        """Return the effect of trimming the last batch: `difference` and `draws` of `Trimming`; None if not trimmed."""
        trimming = self._loading.trimming
        if trimming.last is None or self._last_call is None:
            return None
        original, module, (args, kwargs) = self._last_call
        return {
            "difference": trimming.difference(original, module, args, kwargs),
            "draws": trimming.draws(original, module, args, kwargs),
        }

    def mine(self) -> bool:
        """Return whether this is the watched process, and its training thread or autograd's thread working for it."""
        return self._working and (threading.get_ident() == self._thread or (self._in_backward and is_autograds()))

    def _follow(self) -> None:
        """Switch to the thread that trains if it is not the expected one."""
        if self._working and not self.steps and not self.mine() and not is_autograds():
            self._thread = self._loading.thread = threading.get_ident()

    def _disarm(self) -> None:
        """Stop acting in a forked process."""
        self._working = False
        self._take_off()

    def _take_off(self) -> None:
        self._passes.restore()
        self._patches.restore()
        for handle in self._handles:
            handle.remove()
        self._handles = []

    # Optimizer steps.

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Arguments | None:
        self._follow()
        if not self.mine():
            return None
        if self._by_hand.active:
            self._by_hand.active = False
            self._leave_by_hand()
        self.trained.learn(optimizer)
        timed = None if self.watching is None else self.watching.before_step(optimizer, args, kwargs)
        if not self.opened and self._tries < TRIES:
            self._open(optimizer)
        if self._lead.may_be(self._serials.of(optimizer)):
            self.on_before()
        return timed

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not self.mine():
            return
        if self.watching is not None:
            self.watching.after_step(optimizer, args, kwargs)
        self._loading.trained = True
        if self._lead.stepped(self._serials.of(optimizer)) == "leads":
            self.steps += 1
            self.on_step()

    def _look(self) -> None:
        """End a step if a script without an optimizer has changed its parameters since the last backward pass."""
        key = self._by_hand.changed() if self._by_hand.active else None
        if key is None:
            return
        if not self.opened and self._tries < TRIES:
            leaves = self._by_hand.leaves or [p for module in self._called.values() for p in module.parameters()]
            self._open(ByHand(dict.fromkeys(leaves)))
        self._loading.trained = True
        if self._lead.stepped(key) == "leads":
            self.steps += 1
            self.on_step()

    def _leave_by_hand(self) -> None:
        """Open again with an optimizer if the script only changed parameters by hand before its first step."""
        if self.opened and isinstance(self.live.optimizer, ByHand):
            self.opened, self._tries, self._lead = False, 0, Leader()
            self._called[id(self.live.model)] = self.live.model
            for name in [name for name, why in self.failures.items() if why == NO_OPTIMIZER_WORDS]:
                del self.failures[name]

    def _open(self, optimizer: Optimizer) -> None:
        """Apply everything that acts on model and optimizer, which are known now."""
        self._tries += 1
        model = main_module(self._called, optimizer)
        if model is None:
            if self._tries == TRIES:
                why = "no module with parameters of the optimizer was called with gradients enabled"
                self.failures |= {item.card.name: why for item in self._waiting()}
            return
        live = self.live
        live.model, live.optimizer = model, optimizer
        live.device = next(iter(model.parameters())).device
        self._called.clear()
        for seam in STEP_SEAMS:
            for item in self._waiting():
                if item.card.seam is seam:
                    self._apply(item)
            if seam is Seam.OPTIMIZER:
                self._keep_optimizer(optimizer)
        self._note_applied()
        self.opened = True
        needed = self._acts or self.plan.has(Trait.FREES_GRADIENTS) or isinstance(optimizer, ByHand)
        needed = needed or self._in_backward or self.on_step is not _nothing  # steps in a backward pass belong to its thread
        if self._passes.outermost and not needed:
            self._passes.restore()  # each call of a module goes through a wrapper, at any depth
        self.on_open()

    def _note_applied(self) -> None:
        """Note which calls need more than a check, so that the others cost no more."""
        applied = [item for item, _ in self.live.applied]
        self._sixteen_bit = any(Trait.LOWER_PRECISION in item.card.traits for item in applied)
        self._acts = any(item.card.seam in IN_CALLS for item in applied)

    def _waiting(self) -> list[Optimization]:
        done = {*self.applied, *self.failures}
        return [item for item in reached(self.plan) if item.card.seam not in DATA_SEAMS and item.card.name not in done]

    def _keep_optimizer(self, own: Optimizer) -> None:
        try:
            self._restore_flags = set_flags(self.live, own)
        except Exception as error:  # noqa: BLE001 - the script continues with its unchanged optimizer
            for item in self.plan.optimizations:
                if item.card.seam is Seam.OPTIMIZER:
                    self._fail(item.card.name, error)

    def _apply(self, item: Optimization) -> None:
        if item.card.seam is Seam.OPTIMIZER and isinstance(self.live.optimizer, ByHand):
            self.failures[item.card.name] = NO_OPTIMIZER_WORDS
            return
        if item.card.seam is Seam.ENVIRONMENT and (why := out_of_reach(Plan(optimizations=(item,)))):
            self._fail(item.card.name, MachineError(why[item.card.name]))
            return
        try:
            self.live.apply(item)
        except Exception as error:  # noqa: BLE001 - the script continues, and the reason is reported
            self._fail(item.card.name, error)

    def _failed(self, _error: Exception) -> None:
        report, self.on_failure = self.on_failure, _nothing
        report()

    def _stopped(self, name: str, why: str) -> None:
        """Note that an optimization was stopped because it made a call fail."""
        self.failures[name] = why
        self._note_applied()
        self.on_stop()

    def _forget(self, names: list[str]) -> None:
        for name in names:
            self.failures.pop(name, None)

    def _fail(self, name: str, error: BaseException) -> None:
        self.failures[name] = f"{type(error).__name__}: {error}"
        if name in self.stopped:
            self.on_stop()

    # Calls of the model.

    def _calling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Handle the outermost call of a module with gradients enabled."""

        def outermost(theirs: Callable[..., Any]) -> Callable[..., Any]:
            def outermost_seam(*args: Any, **kwargs: Any) -> Any:
                self._look()
                self._inside = True
                try:
                    if self.opened:
                        return self._call(theirs, args, kwargs)
                    if len(self._called) < MAX_CALLED and torch.is_grad_enabled():
                        self._called[id(args[0])] = args[0]
                    return theirs(*args, **kwargs)
                finally:
                    self._inside = False

            return outermost_seam

        guard = guarded(outermost, original, self._failed)

        @functools.wraps(original)
        def calling_seam(*args: Any, **kwargs: Any) -> Any:
            try:
                passes = self._inside or not self.mine() or not (torch.is_grad_enabled() or self._acts)
            except Exception as error:  # noqa: BLE001 - handle_error raises it again if it is not Hasten's
                passes = True
                handle_error(error, self._failed)
            return original(*args, **kwargs) if passes else guard(*args, **kwargs)

        return calling_seam

    def _call(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a module under the plan; without it, if the plan makes the call fail."""
        if not self.trained.holds(args[0]):
            return original(*args, **kwargs)
        if self._in_backward:  # recomputed for the backward pass, which fails as a whole
            return self._planned(original, args, kwargs)

        def plain() -> Any:
            return original(*args, **kwargs)

        if not torch.is_grad_enabled():
            return self.fallback.call(args[0], plain, plain)
        return self.fallback.call(args[0], lambda: self._planned(original, args, kwargs), plain)

    def _planned(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        live, module = self.live, args[0]
        given: Any = (args[1:], kwargs)
        if module is live.model:
            for transform in live.batch_transforms:
                given = transform(given)
            self._note_call(original, given)
        if not live.forward_contexts:
            return original(module, *given[0], **given[1])
        with live.contexts():
            output = original(module, *given[0], **given[1])
        return map_tensors(output, _widened) if self._sixteen_bit else output

    def _note_call(self, original: Callable[..., Any], given: Any) -> None:
        """Record the model's arguments and their shapes while they are needed."""
        if self.on_step is _nothing:
            return
        wanted = self._loading.trimming.last is not None
        self._last_call = (original, self.live.model, given) if wanted else None
        shapes: list[tuple[int, ...]] = []

        def note(tensor: torch.Tensor) -> torch.Tensor:
            shapes.append(shape_of(tensor))
            return tensor

        map_tensors(given, note)
        self.shapes = tuple(shapes)

    # Backward passes, and setting gradients to zero.

    def _going_back(self, original: Callable[..., Any], *, method: bool) -> Callable[..., Any]:
        @functools.wraps(original)
        def going_back_seam(*args: Any, **kwargs: Any) -> Any:
            if self._in_backward or not self.mine():
                return original(*args, **kwargs)
            self._look()
            self._in_backward = True
            try:
                first = args[0] if args else kwargs.get("tensors")
                losses = [first] if method or isinstance(first, torch.Tensor) else list(first or ())
                self._begin_backward(losses)
                result = self.fallback.backward(lambda: original(*args, **kwargs))
            finally:
                self._in_backward = False
            self._end_backward()
            return result

        return going_back_seam

    def _stepping(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the step of one of PyTorch's optimizers, to repeat it with the script's own implementation if it fails."""

        @functools.wraps(original)
        def stepping_seam(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            def step() -> Any:
                return original(optimizer, *args, **kwargs)

            return self.fallback.step(step, optimizer, self._without_flags) if self.mine() else step()

        return stepping_seam

    def _without_flags(self) -> Undo:
        """Restore the script's own flags of the optimizer. Return a function that sets those of the plan again."""
        optimizer = self.live.optimizer
        places = [*optimizer.param_groups, optimizer.defaults]
        under_plan = [dict(place) for place in places]
        self._restore_flags()

        def again() -> None:
            for place, flags in zip(places, under_plan, strict=True):
                place.update({name: flags[name] for name in FLAGS if name in flags})

        return again

    def _gradients(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `torch.autograd.grad`: a backward pass, unless its gradients are a part of a loss."""

        @functools.wraps(original)
        def gradients_seam(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            transforms = inside_transform()
            part = (args[2] if len(args) > 2 else kwargs.get("create_graph")) and not transforms
            if part or self._in_backward or self._inside or not self._by_hand.active or not self.mine():
                return original(outputs, inputs, *args, **kwargs)
            losses = [outputs] if isinstance(outputs, torch.Tensor) else [*outputs]
            self._look()
            self._begin_backward([plain_loss(loss) for loss in losses] if transforms else losses)
            result = original(outputs, inputs, *args, **kwargs)
            self._end_backward({} if transforms else by_tensor(inputs, result))
            return result

        return gradients_seam

    def _begin_backward(self, losses: list[Any]) -> None:
        self.backwards += 1
        for loss in losses:
            if isinstance(loss, torch.Tensor) and loss.numel() == 1:
                self.on_loss(loss)
        self._by_hand.before_backward(losses)

    def _end_backward(self, gradients: dict[int, torch.Tensor] | None = None) -> None:
        self._by_hand.after_backward(gradients)
        if self._by_hand.active and self.opened:
            self.on_before()

    def _zeroing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `Optimizer.zero_grad` or `Module.zero_grad`, which both take `set_to_none`."""

        @functools.wraps(original)
        def zeroing_seam(owner: Any, set_to_none: bool = True) -> Any:  # noqa: FBT001, FBT002 - torch's signature
            if not self.mine():
                return original(owner, set_to_none)
            if not self.opened:
                self.live.zero_grad_to_none = set_to_none
            wanted = self.opened and self.live.zero_grad_to_none and self.plan.has(Trait.FREES_GRADIENTS)
            return original(owner, set_to_none or wanted)

        return zeroing_seam


def _optimizers() -> set[type[Optimizer]]:
    """Return PyTorch's own optimizer classes. Those of others keep their implementation under every plan."""
    kinds = vars(torch.optim).values()
    return {kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Optimizer) and kind is not Optimizer}


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    """Convert a 16-bit model output to single precision, so that the script computes its loss as before."""
    return tensor.float() if tensor.dtype in HALF else tensor


def _nothing() -> None:
    return None


def _ignored(_loss: torch.Tensor) -> None:
    return None
