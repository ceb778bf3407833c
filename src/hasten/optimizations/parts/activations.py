"""Measure which activations a forward pass stores for the backward pass, and choose those that are cheapest to recompute.

A forward pass is observed in two ways. Hooks see every tensor that autograd would save, and save none, so that the
measurement needs little memory. A dispatch mode times every operator and records which memory it allocates. Each storage
counts once, even if it has several views. Parameters, buffers and the batch do not count, because they exist anyway.

The choice is a knapsack problem: the activations that a block stores must fit the budget, and the cost is the time to
recompute the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from hasten.core.batch import iter_tensors
from hasten.core.errors import JobError
from hasten.core.late_compiler import uncompiled
from hasten.core.live import LiveJob
from hasten.core.modules import kept_buffers
from hasten.core.seeding import kept_random_state

OpCall: TypeAlias = tuple[str, int]
"""An operator with its overload, and how often it ran before in the same block."""

PASSES = 3
"""Number of forward passes. The first is a warm-up, and the fastest time of each operator counts."""
BUCKETS = 1024
"""Number of steps into which the budget of the knapsack is divided."""
CASTS = ("aten::_to_copy",)
"""Operators that are never stored: autocast caches cast weights, so a recomputation may run another number of casts."""


@dataclass
class OpRun:
    """One run of an operator in a block.

    Attributes:
        call: The operator and its number.
        seconds: Its running time.
        made_bytes: Bytes that it allocated; 0 for a view.
        keepable: Whether its result may be stored instead of recomputed: the operator drew no random numbers and changed
            nothing in place, and its result was not changed later.
    """

    call: OpCall
    seconds: float
    made_bytes: int = 0
    keepable: bool = True


@dataclass
class BlockRun:
    """One block in a forward pass.

    Attributes:
        ops: Its operators, in order.
        kept_bytes: Bytes that the block allocated and autograd saves, without the result of the block.
        num_again: Number of operators that must run again if nothing is stored. Later operators are not needed.
        num_calls: Number of times that the block ran.
    """

    ops: list[OpRun] = field(default_factory=list)
    kept_bytes: int = 0
    num_again: int = 0
    num_calls: int = 0


@dataclass(frozen=True)
class Activations:
    """Activations that one forward pass stores: their `total_bytes`, and those of each block."""

    total_bytes: int
    blocks: tuple[BlockRun, ...]


@dataclass(frozen=True)
class Choice:
    """The activations to store.

    Attributes:
        keep: The results to store for each block; None does not checkpoint the block.
        saved_frac: Share of the activation memory that this saves, from 0 to 1, by the measured sizes.
        again_s: Measured time of the operators that run again, in seconds.
    """

    keep: tuple[frozenset[OpCall] | None, ...]
    saved_frac: float
    again_s: float


def choose(activations: Activations, save_frac: float) -> Choice:
    """Choose the activations to store, so that `save_frac` of their memory is saved at the least cost in time.

    If that is not possible, no block stores activations.
    """
    order = sorted(range(len(activations.blocks)), key=lambda index: -activations.blocks[index].kept_bytes)
    plain = sum(block.kept_bytes for block in activations.blocks)
    budget = plain - save_frac * activations.total_bytes
    if budget < 0:
        return _choice(activations, dict.fromkeys(order, frozenset()))
    bucket = max(budget, 1.0) / BUCKETS
    avoided = np.zeros(BUCKETS + 1)
    items: list[tuple[int, OpRun, int, Any]] = []
    again, best = 0.0, (float("inf"), 0, 0, 0)  # seconds, blocks, items, buckets
    for number, index in enumerate(order, start=1):
        block = activations.blocks[index]
        plain -= block.kept_bytes
        for op in block.ops[: block.num_again]:
            again += op.seconds
            if op.keepable:
                size = round(op.made_bytes / bucket)
                avoided, taken = _with_item(avoided, op.seconds, size)
                items.append((index, op, size, taken))
        if plain <= budget:
            room = int((budget - plain) / bucket)
            best = min(best, (again - float(avoided[room]), number, len(items), room))
    _, num_blocks, num_items, room = best
    keep: dict[int, set[OpCall]] = {index: set() for index in order[:num_blocks]}
    for index, op, size, taken in reversed(items[:num_items]):
        if taken[room]:
            keep[index].add(op.call)
            room -= size
    return _choice(activations, {index: frozenset(calls) for index, calls in keep.items()})


def _with_item(avoided: Any, seconds: float, size: int) -> tuple[Any, Any]:
    """Add an item to the knapsack. Returns the avoided seconds for each budget, and whether the item is stored there."""
    taken = np.zeros(len(avoided), dtype=bool)
    if size >= len(avoided):
        return avoided, taken
    better = avoided[: len(avoided) - size] + seconds
    taken[size:] = better >= avoided[size:]
    result = avoided.copy()
    result[size:] = np.maximum(avoided[size:], better)
    return result, taken


def _choice(activations: Activations, keep: dict[int, frozenset[OpCall]]) -> Choice:
    saved, again = 0, 0.0
    for index, calls in keep.items():
        block = activations.blocks[index]
        saved += block.kept_bytes - sum(op.made_bytes for op in block.ops if op.call in calls)
        again += sum(op.seconds for op in block.ops[: block.num_again] if op.call not in calls)
    share = saved / activations.total_bytes if activations.total_bytes else 0.0
    return Choice(tuple(keep.get(index) for index in range(len(activations.blocks))), share, again)


def measure_activations(live: LiveJob, blocks: Sequence[nn.Module], batch: Any) -> Activations:
    """Run the forward pass of a training step on `batch`, on the device, and measure the activations that it stores.

    Random states, training modes and buffers are restored. Gradients do not change.

    Raises:
        JobError: A block runs more than once per step, or the loss itself computes gradients.
    """
    modes = [(module, module.training) for module in live.model.modules()]
    live.model.train()
    passes = []
    try:
        for _ in range(PASSES):
            devices = [live.device] if live.device.type == "cuda" else []
            with kept_random_state(), torch.random.fork_rng(devices=devices), kept_buffers(live.model):
                watch = _Watch(live, blocks, batch)
                with uncompiled(), watch.watching():
                    live.compute_loss(batch)
                passes.append(watch)
    finally:
        for module, training in modes:
            module.training = training
    last = passes[-1]
    if any(block.num_calls > 1 for block in last.blocks):
        raise JobError(
            "A memory budget needs blocks that run once per step, but a block of this model runs more often: set "
            "save_frac = 0, or remove activation_checkpointing from the plan."
        )
    for earlier in passes[1:]:
        for mine, other in zip(last.blocks, earlier.blocks, strict=True):
            for op, same in zip(mine.ops, other.ops, strict=False):
                op.seconds = min(op.seconds, same.seconds)
    return Activations(last.total_bytes, tuple(last.blocks))


class _Watch(TorchDispatchMode):
    """Records what is allocated, and which of it autograd saves."""

    def __init__(self, live: LiveJob, blocks: Sequence[nn.Module], batch: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        there = (*live.model.parameters(), *live.model.buffers(), *iter_tensors(batch))
        self._there = {_address(tensor) for tensor in there if _has_storage(tensor)}
        self._modules, self._device = blocks, live.device
        self._kept: dict[int, StorageWeakRef] = {}
        self._made: dict[int, tuple[StorageWeakRef, OpRun, int | None]] = {}
        self._own: list[dict[int, int]] = [{} for _ in blocks]
        self._now: int | None = None
        self._counts: Counter[str] = Counter()
        self.blocks = [BlockRun() for _ in blocks]
        self.total_bytes = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Record the operators that run inside this context."""
        with ExitStack() as stack:
            for index, module in enumerate(self._modules):
                stack.callback(module.register_forward_pre_hook(self._entering(index)).remove)
                stack.callback(module.register_forward_hook(self._leaving(index)).remove)
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(self._pack, _no_backward))
            stack.enter_context(self)
            yield

    def _entering(self, index: int) -> Any:
        def enter(*_: object) -> None:
            self._now = index
            self._counts.clear()
            self.blocks[index].num_calls += 1

        return enter

    def _leaving(self, index: int) -> Any:
        def leave(_module: nn.Module, _args: Any, result: Any) -> None:
            for address in {_address(tensor) for tensor in iter_tensors(result) if _has_storage(tensor)}:
                if self._is_kept(address):
                    self._own[index].pop(address, None)  # the result stays in memory as the input of the next module
                if (made := self._maker(address)) is not None and made[0] == index:
                    made[1].made_bytes = 0
            self.blocks[index].kept_bytes += sum(self._own[index].values())
            self._now = None

        return leave

    def _pack(self, tensor: torch.Tensor) -> None:
        """Count a tensor that autograd would save, without saving it."""
        now = self._now
        if now is not None:
            self.blocks[now].num_again = len(self.blocks[now].ops)
        if not _has_storage(tensor) or (address := _address(tensor)) in self._there:
            return
        if self._is_kept(address):
            return
        size = tensor.untyped_storage().nbytes()
        self._kept[address] = StorageWeakRef(tensor.untyped_storage())
        self.total_bytes += size
        made = self._maker(address)
        if now is not None and made is not None and made[0] == now:
            # Nothing is saved here, so an earlier tensor may have had the same address. It counts as well.
            self.blocks[now].kept_bytes += self._own[now].pop(address, 0)
            self._own[now][address] = size

    def _is_kept(self, address: int) -> bool:
        """Return whether the storage that is now at an address was counted."""
        known = self._kept.get(address)
        return known is not None and not known.expired()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for address in _written(func, args, kwargs):  # this changes the result of an earlier operator
            if (made := self._maker(address)) is not None:
                made[1].keepable = False
        if self._now is None:
            return func(*args, **kwargs)
        may_draw = torch.Tag.nondeterministic_seeded in func.tags
        before = self._random_states() if may_draw else []
        self._synchronize()
        started = perf_counter()
        result = func(*args, **kwargs)
        self._synchronize()
        seconds = perf_counter() - started
        drew = may_draw and any(not torch.equal(a, b) for a, b in zip(before, self._random_states(), strict=True))
        name = str(func)
        op = OpRun((name, self._counts[name]), seconds)
        self._counts[name] += 1
        self.blocks[self._now].ops.append(op)
        schema = func._schema  # noqa: SLF001  an operator's schema has no public accessor
        if not schema.is_mutable:
            self._note_memory(op, (args, kwargs), result)
        op.keepable = op.made_bytes > 0 and not drew and schema.name not in CASTS
        return result

    def _note_memory(self, op: OpRun, given: Any, result: Any) -> None:
        inputs = {_address(tensor) for tensor in iter_tensors(given) if _has_storage(tensor)}
        for tensor in iter_tensors(result):
            if _has_storage(tensor) and (address := _address(tensor)) not in inputs:
                storage = tensor.untyped_storage()
                op.made_bytes += storage.nbytes()
                self._made[address] = (StorageWeakRef(storage), op, self._now)

    def _maker(self, address: int) -> tuple[int | None, OpRun] | None:
        """Return the block and the operator that allocated the storage which is now at an address, or None."""
        made = self._made.get(address)
        return None if made is None or made[0].expired() else (made[2], made[1])

    def _random_states(self) -> list[torch.Tensor]:
        states = [torch.get_rng_state()]
        return [*states, torch.cuda.get_rng_state(self._device)] if self._device.type == "cuda" else states

    def _synchronize(self) -> None:
        if self._device.type != "cpu":
            torch.accelerator.synchronize()


def _has_storage(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.untyped_storage().nbytes() > 0


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _written(func: Any, args: Any, kwargs: Any) -> Iterator[int]:
    """Yield the addresses that an operator writes to."""
    schema = func._schema  # noqa: SLF001
    if schema.is_mutable:
        for place, argument in enumerate(schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                given = args[place] if place < len(args) else kwargs.get(argument.name)
                yield from (_address(tensor) for tensor in iter_tensors(given) if _has_storage(tensor))


def _no_backward(_: object) -> torch.Tensor:
    raise JobError(
        "A memory budget cannot be measured for a loss that computes gradients itself: set save_frac = 0, or remove "
        "activation_checkpointing from the plan."
    )
