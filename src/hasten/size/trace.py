"""Record how much memory each step of a training update holds, by kind, on fake tensors that allocate nothing.

A dispatch mode sees each tensor storage as an operator creates it, and a weak reference sees it go. Memory that a kernel
allocates and frees inside one operator is not seen, nor is what an allocator rounds up.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from hasten.core.batch import iter_tensors

Kind: TypeAlias = Literal["parameters", "gradients", "states", "batch", "activations", "copies", "temporary"]
KINDS: tuple[Kind, ...] = ("parameters", "gradients", "states", "batch", "activations", "copies", "temporary")
Phase: TypeAlias = Literal["forward", "backward", "update"]
PHASES: tuple[Phase, ...] = ("forward", "backward", "update")
Line: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"


def _attention_flops(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> int:
    return int(sdpa_flop_count(query.shape, key.shape, value.shape))


def _attention_backward_flops(
    grad: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any
) -> int:
    return int(sdpa_backward_flop_count(grad.shape, query.shape, key.shape, value.shape))


FLOPS: dict[Any, Callable[..., int]] = {
    **flop_registry,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops,  # noqa: SLF001
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward_flops,  # noqa: SLF001
}


@dataclass(eq=False)
class _Storage:
    num_bytes: int
    kind: Kind
    born: int
    died: int | None = None


@dataclass(frozen=True, kw_only=True)
class Trace:
    """The memory of one training update on one device.

    Attributes:
        lines: Kind -> bytes after each operator, `[steps]`. `copies` are weights in another precision, made by autocast.
        ends: Phase -> the number of steps when it ended.
        flops: Floating-point operations of forward and backward, counted by operator. Causal attention counts in full.
        marks: Name -> the step at which `Ledger.mark` was called.
    """

    lines: Mapping[Kind, Line]
    ends: Mapping[Phase, int]
    flops: float
    marks: Mapping[str, int] = field(default_factory=dict)

    @property
    def total(self) -> Line:
        """Bytes of all kinds after each operator."""
        total: Line = np.sum(list(self.lines.values()), axis=0)
        return total

    @property
    def peak(self) -> int:
        """The largest number of bytes held at once."""
        return int(self.total.max())

    def at(self, step: int) -> dict[Kind, int]:
        """Return the bytes of each kind after an operator."""
        return {kind: int(line[step]) for kind, line in self.lines.items()}


class Ledger(TorchDispatchMode):
    """Writes down when each storage is created and freed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.step = 0
        self.phase: Phase = "forward"
        self.ends: dict[Phase, int] = {}
        self.flops = 0
        self.marks: dict[str, int] = {}
        self._known: dict[int, tuple[Any, _Storage]] = {}
        self._all: list[_Storage] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.step += 1
        if (count := FLOPS.get(func._overloadpacket)) is not None:  # noqa: SLF001
            self.flops += count(*args, **(kwargs or {}), out_val=out)
        for item in tree_leaves(out):
            if isinstance(item, torch.Tensor):
                copied = func is torch.ops.aten._to_copy.default and self._kind(args[0]) == "parameters"  # noqa: SLF001
                self.add(item, "copies" if copied else "activations" if self.phase == "forward" else "temporary")
        return out

    def add(self, tensor: torch.Tensor, kind: Kind, *, again: bool = False) -> None:
        """Write down the storage of a tensor, unless it is known. `again` gives a known one another kind."""
        storage = tensor.untyped_storage()
        key = storage._cdata  # noqa: SLF001
        if key in self._known:
            if again:
                self._known[key][1].kind = kind
            return
        entry = _Storage(storage.nbytes(), kind, self.step)
        self._all.append(entry)
        self._known[key] = (weakref.ref(storage, partial(self._gone, key, entry)), entry)

    def _gone(self, key: int, entry: _Storage, _ref: object) -> None:
        entry.died = self.step
        self._known.pop(key, None)

    def _kind(self, tensor: Any) -> Kind | None:
        known = self._known.get(tensor.untyped_storage()._cdata) if isinstance(tensor, torch.Tensor) else None  # noqa: SLF001
        return known[1].kind if known else None

    def end(self, phase: Phase) -> None:
        """Mark the end of a phase."""
        self.step += 1
        self.ends[phase] = self.step
        self.phase = PHASES[min(PHASES.index(phase) + 1, 2)]

    def mark(self, name: str) -> None:
        """Remember the present step."""
        self.marks[name] = self.step

    def lines(self) -> dict[Kind, Line]:
        """Return kind -> bytes after each step."""
        change = {kind: np.zeros(self.step + 2) for kind in KINDS}
        forward = self.ends["forward"]
        for entry in self._all:
            kind = entry.kind
            if kind == "activations" and entry.died is not None and entry.died < forward:
                kind = "temporary"
            change[kind][entry.born] += entry.num_bytes
            if entry.died is not None:
                change[kind][entry.died + 1] -= entry.num_bytes
        return {kind: np.cumsum(line)[:-1] for kind, line in change.items()}


def trace(
    model: nn.Module,
    loss: Callable[[], torch.Tensor],
    *,
    batch: Any = None,
    optimizer: Optimizer | None = None,
    clip_norm: float | None = None,
    to_none: bool = True,
    marked: nn.Module | None = None,
    after_update: Callable[[nn.Module], None] | None = None,
) -> Trace:
    """Record the memory of one training update.

    Call it within a `FakeTensorMode`, or without one to run on real tensors.

    Args:
        model: The model.
        loss: Computes the loss of `batch`, a scalar.
        batch: The tensors of the batch, in any nesting.
        optimizer: Its update is recorded too, the second one, which has all states. None records no update.
        clip_norm: Largest gradient norm; None is off.
        to_none: Whether gradients are freed between updates.
        marked: The step at which the backward pass reaches this module is in `marks` as `backward`.
        after_update: Runs after the optimizer's update, without gradients.
    """

    def update() -> None:
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        if optimizer is not None:
            optimizer.step()
        if after_update is not None:
            with torch.no_grad():
                after_update(model)

    if optimizer is not None:
        loss().backward()
        update()
        optimizer.zero_grad(set_to_none=to_none)
    ledger = Ledger()
    hooks = _register(ledger, model, batch, optimizer)
    if marked is not None:
        hooks.append(marked.register_full_backward_pre_hook(lambda *_: ledger.mark("backward")))
    with ledger:
        value = loss()
        ledger.end("forward")
        value.backward()
        ledger.end("backward")
        update()
        ledger.end("update")
    for hook in hooks:
        hook.remove()
    return Trace(lines=ledger.lines(), ends=dict(ledger.ends), flops=float(ledger.flops), marks=ledger.marks)


def _register(ledger: Ledger, model: nn.Module, batch: Any, optimizer: Optimizer | None) -> list[Any]:
    """Tell the ledger what exists already, and which gradients to expect; return the hooks that tell it."""
    known: dict[Kind, list[Any]] = {
        "parameters": [*model.parameters(), *model.buffers()],
        "gradients": [item.grad for item in model.parameters()],
        "states": list(optimizer.state.values()) if optimizer else [],
        "batch": list(iter_tensors(batch)),
    }
    for kind, tensors in known.items():
        for item in tree_leaves(tensors):
            if isinstance(item, torch.Tensor):
                ledger.add(item, kind)

    def arrived(parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            ledger.add(parameter.grad, "gradients", again=True)

    return [item.register_post_accumulate_grad_hook(arrived) for item in model.parameters() if item.requires_grad]
