"""What a forward pass keeps for the backward pass, operator by operator, and which of it is cheapest to compute again.

One forward pass is watched from two sides: hooks see every tensor that autograd would keep (and keep nothing, so that
the measurement itself needs little memory), a dispatch mode times every operator and sees which memory it makes.
Storages count once, whoever views them; parameters, buffers and the batch do not count, for they are there anyhow.

The choice is a knapsack: what a block keeps must fit the budget, and the seconds of what it does not keep are the price.
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
from hasten.core.live import LiveJob
from hasten.core.modules import kept_buffers
from hasten.core.seeding import kept_random_state

OpCall: TypeAlias = tuple[str, int]
"""An operator with its overload, and how often it ran before in the same block."""

PASSES = 3
"""Forward passes; the first warms up. The quickest of each operator counts."""
BUCKETS = 1024
"""Steps of the knapsack's budget."""
CASTS = ("aten::_to_copy",)
"""Autocast keeps a cast weight for the whole forward pass: when computed again, the number of casts may differ."""


@dataclass
class OpRun:
    """One operator in a block.

    Attributes:
        call: Which one.
        seconds: How long it took.
        made_bytes: Memory it made; 0 for a view.
        keepable: Whether its result may be kept instead of computed again: it drew no random numbers, changed
            nothing in place, and was not changed later.
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
        kept_bytes: What autograd keeps of what the block made, without the block's result.
        num_again: So many operators of the block must run again if nothing is kept; later ones are not needed.
        num_calls: How often the block ran.
    """

    ops: list[OpRun] = field(default_factory=list)
    kept_bytes: int = 0
    num_again: int = 0
    num_calls: int = 0


@dataclass(frozen=True)
class Activations:
    """What one forward pass keeps: `total_bytes` in all, and each block's part."""

    total_bytes: int
    blocks: tuple[BlockRun, ...]


@dataclass(frozen=True)
class Choice:
    """What to keep.

    Attributes:
        keep: For each block the results to keep; None leaves the block as it is.
        saved_frac: Share of all kept memory that is saved, 0 to 1, by the measured sizes.
        again_s: Seconds of the operators that run again, as measured.
    """

    keep: tuple[frozenset[OpCall] | None, ...]
    saved_frac: float
    again_s: float


def choose(found: Activations, save_frac: float) -> Choice:
    """Choose what to keep so that `save_frac` of all kept memory is saved in the least time.

    Where that cannot be reached, nothing is kept in any block.
    """
    order = sorted(range(len(found.blocks)), key=lambda index: -found.blocks[index].kept_bytes)
    plain = sum(block.kept_bytes for block in found.blocks)
    budget = plain - save_frac * found.total_bytes
    if budget < 0:
        return _choice(found, dict.fromkeys(order, frozenset()))
    bucket = max(budget, 1.0) / BUCKETS
    avoided = np.zeros(BUCKETS + 1)
    items: list[tuple[int, OpRun, int, Any]] = []
    again, best = 0.0, (float("inf"), 0, 0, 0)  # seconds, blocks, items, buckets
    for number, index in enumerate(order, start=1):
        block = found.blocks[index]
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
    return _choice(found, {index: frozenset(calls) for index, calls in keep.items()})


def _with_item(avoided: Any, seconds: float, size: int) -> tuple[Any, Any]:
    """One more thing to keep: the seconds avoided for each budget, and whether it is kept there."""
    taken = np.zeros(len(avoided), dtype=bool)
    if size >= len(avoided):
        return avoided, taken
    better = avoided[: len(avoided) - size] + seconds
    taken[size:] = better >= avoided[size:]
    result = avoided.copy()
    result[size:] = np.maximum(avoided[size:], better)
    return result, taken


def _choice(found: Activations, keep: dict[int, frozenset[OpCall]]) -> Choice:
    saved, again = 0, 0.0
    for index, calls in keep.items():
        block = found.blocks[index]
        saved += block.kept_bytes - sum(op.made_bytes for op in block.ops if op.call in calls)
        again += sum(op.seconds for op in block.ops[: block.num_again] if op.call not in calls)
    share = saved / found.total_bytes if found.total_bytes else 0.0
    return Choice(tuple(keep.get(index) for index in range(len(found.blocks))), share, again)


def measure_activations(live: LiveJob, blocks: Sequence[nn.Module], batch: Any) -> Activations:
    """Run the forward pass of a training step on `batch`, on the device, and measure what it keeps.

    Randomness, modes and buffers are put back; no gradient is touched.

    Raises:
        JobError: A block runs more than once in a step, or the loss itself asks for gradients.
    """
    modes = [(module, module.training) for module in live.model.modules()]
    live.model.train()
    passes = []
    try:
        for _ in range(PASSES):
            devices = [live.device] if live.device.type == "cuda" else []
            with kept_random_state(), torch.random.fork_rng(devices=devices), kept_buffers(live.model):
                watch = _Watch(live, blocks, batch)
                with torch.compiler.set_stance("force_eager"), watch.watching():
                    live.compute_loss(batch)
                passes.append(watch)
    finally:
        for module, training in modes:
            module.training = training
    last = passes[-1]
    if any(block.num_calls > 1 for block in last.blocks):
        raise JobError("a memory budget needs blocks that run once in a step, and one of this model runs more often.")
    for earlier in passes[1:]:
        for mine, other in zip(last.blocks, earlier.blocks, strict=True):
            for op, same in zip(mine.ops, other.ops, strict=False):
                op.seconds = min(op.seconds, same.seconds)
    return Activations(last.total_bytes, tuple(last.blocks))


class _Watch(TorchDispatchMode):
    """Sees what is made, and what is kept of it."""

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
        """Watch what runs inside."""
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
                    self._own[index].pop(address, None)  # the result lives on as the input of what follows
                if (made := self._maker(address)) is not None and made[0] == index:
                    made[1].made_bytes = 0
            self.blocks[index].kept_bytes += sum(self._own[index].values())
            self._now = None

        return leave

    def _pack(self, tensor: torch.Tensor) -> None:
        """Count a tensor that autograd would keep; nothing is kept."""
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
            # Nothing is held here, so another tensor may have lain at this address before: it counts as well.
            self.blocks[now].kept_bytes += self._own[now].pop(address, 0)
            self._own[now][address] = size

    def _is_kept(self, address: int) -> bool:
        """Whether what lies at an address now was counted."""
        known = self._kept.get(address)
        return known is not None and not known.expired()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for address in _written(func, args, kwargs):  # the result of an earlier operator is another now
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
        """The block and the operator that made what lies at an address now."""
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
    """Addresses that an operator writes to."""
    schema = func._schema  # noqa: SLF001
    if schema.is_mutable:
        for place, argument in enumerate(schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                given = args[place] if place < len(args) else kwargs.get(argument.name)
                yield from (_address(tensor) for tensor in iter_tensors(given) if _has_storage(tensor))


def _no_backward(_: object) -> torch.Tensor:
    raise JobError("the loss asks for gradients while it is computed: a memory budget cannot be measured for such a job.")
