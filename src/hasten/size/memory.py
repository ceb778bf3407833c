"""Say how much memory training takes on each device: of a traced update, under a sharding, a precision and states.

What is assumed and not traced, because it happens outside the operators of the model:

- DDP keeps its gradient buckets all the time, and gradients are views of them (`gradient_as_bucket_view=True`).
- FSDP2 shards each block and the rest of the model apart (`fully_shard` on blocks, then on the model). At its peak it holds
  the rest, two gathered blocks and the buffer of the next all-gather in the precision of the computation; in the backward
  pass also the gradients of two blocks and of the rest, and a reduce-scatter buffer in the precision of the weights.
- The optimizer is fused. PyTorch's default on GPUs (foreach) needs one more copy of the sharded weights during an update.
- 8-bit states have a scale of 4 bytes for each block of 256 values (torchao).
- Fragmentation is a fraction of what is allocated and freed at each step. It was not measured: it depends on the allocator.

Source: Rajbhandari et al. 2020 (ZeRO); the documentation of `torch.distributed.fsdp.fully_shard`; torchao 0.18.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Literal, TypeAlias, get_args

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from hasten.core.errors import JobError
from hasten.size.shape import Shape
from hasten.size.trace import PHASES, Line, Phase, Trace, trace
from hasten.size.transformer import Transformer

Sharding: TypeAlias = Literal["none", "ddp", "fsdp2", "hsdp", "offload"]
Precision: TypeAlias = Literal["mixed", "float32", "bfloat16"]
States: TypeAlias = Literal["adam", "adam-8bit", "momentum", "none"]
Part: TypeAlias = Literal["parameters", "gradients", "states", "activations", "gathered", "temporary", "fragmentation"]
PARTS: tuple[Part, ...] = get_args(Part)
FEW = 3
"""Blocks that are traced."""
EIGHT_BIT = 1 + 4 / 256
"""Bytes of one 8-bit state."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How a model is trained.

    Attributes:
        sharding: `none` (one device), `ddp`, `fsdp2`, `hsdp` (FSDP2 within groups of `shards` ranks) or `offload` (FSDP2
            with parameters, gradients and states in host memory).
        ranks: Number of devices.
        shards: Ranks of a group of `hsdp`.
        precision: `mixed` keeps weights, gradients and states in float32 and computes in bfloat16; the other two use one
            precision for everything.
        states: `adam`, `adam-8bit`, `momentum` or `none` (plain SGD).
        recomputed: Full activation checkpointing: each block is computed again in the backward pass.
        flash: Use the fused attention kernel.
        batch: Sequences per device in a micro-batch.
        length: Tokens of a sequence.
        fragmentation: Share of the memory that varies within a step which the allocator cannot use.

    Raises:
        JobError: A value is not valid.
    """

    sharding: Sharding = "none"
    ranks: int = 1
    shards: int = 8
    precision: Precision = "mixed"
    states: States = "adam"
    recomputed: bool = False
    flash: bool = True
    batch: int = 1
    length: int = 4096
    fragmentation: float = 0.05

    def __post_init__(self) -> None:
        for name, choices in (("sharding", Sharding), ("precision", Precision), ("states", States)):
            if getattr(self, name) not in get_args(choices):
                raise JobError(f"--{name} must be one of {', '.join(get_args(choices))}, not {getattr(self, name)!r}.")
        for name in ("ranks", "shards", "batch", "length"):
            if getattr(self, name) < 1:
                raise JobError(f"--{name} must be at least 1, not {getattr(self, name)}.")
        if not 0 <= self.fragmentation < 1:
            raise JobError(f"--fragmentation must be from 0 to 1, not {self.fragmentation}.")
        if self.sharding == "none" and self.ranks > 1:
            raise JobError(f"--sharding none is for one device, not for {self.ranks}: use ddp, fsdp2, hsdp or offload.")
        if self.sharding == "hsdp" and self.ranks % self.shards:
            raise JobError(f"--ranks {self.ranks} is not a multiple of --shards {self.shards}.")

    @property
    def is_sharded(self) -> bool:
        """Whether each device holds a part of the weights only."""
        return self.sharding in ("fsdp2", "hsdp", "offload")

    @property
    def parts(self) -> int:
        """Number of parts that weights and states are divided into."""
        return (self.shards if self.sharding == "hsdp" else self.ranks) if self.is_sharded else 1

    def place(self) -> str:
        """Return the devices and the sharding."""
        where = {"none": "one device", "ddp": "DDP", "fsdp2": "FSDP2", "offload": "CPU offload"}
        name = where.get(self.sharding, f"HSDP in {self.shards}s")
        return f"{name} x {self.ranks}" if self.ranks > 1 else name

    def words(self) -> str:
        """Return the setup in one line."""
        extra = [text for text, is_so in (("recomputed", self.recomputed), ("plain attention", not self.flash)) if is_so]
        return ", ".join([self.place(), self.precision, self.states, *extra])


@dataclass(frozen=True, kw_only=True)
class Weights:
    """What is sharded: numbers of parameters, and their bytes.

    Attributes:
        total: Parameters of the model.
        block: Parameters of the largest block that is gathered at once.
        rest: Parameters outside the blocks.
        kept_bytes: Bytes of one parameter where it is kept, and of its gradient.
        used_bytes: Bytes of one parameter in the computation.
        state_bytes: Bytes of the optimizer's states of one parameter.
    """

    total: int
    block: int
    rest: int
    kept_bytes: float
    used_bytes: float
    state_bytes: float


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The memory of one device.

    Attributes:
        moments: Phase -> bytes of each part when that phase holds most.
        host_bytes: Bytes in host memory per device, with CPU offload.
    """

    moments: Mapping[Phase, Mapping[Part, int]]
    host_bytes: int = 0

    @property
    def peak_phase(self) -> Phase:
        """The phase that holds most."""
        return max(self.moments, key=lambda phase: sum(self.moments[phase].values()))

    @property
    def peak(self) -> int:
        """The largest number of bytes that the device holds at once."""
        return sum(self.moments[self.peak_phase].values())


def weights_of(shape: Shape, setup: Setup) -> Weights:
    """Return what is sharded of a described transformer."""
    kept = 2 if setup.precision == "bfloat16" else 4
    states = {"adam": 2 * kept, "adam-8bit": 2 * EIGHT_BIT, "momentum": kept, "none": 0}
    return Weights(
        total=shape.parameters,
        block=shape.block,
        rest=shape.ends,
        kept_bytes=kept,
        used_bytes=4 if setup.precision == "float32" else 2,
        state_bytes=states[setup.states],
    )


def memory_of(shape: Shape, setup: Setup) -> Memory:
    """Return the memory of training a described transformer.

    Raises:
        JobError: The transformer cannot be built.
    """
    return on_each_device(trace_shape(shape, setup), weights_of(shape, setup), setup)


def on_each_device(traced: Trace, weights: Weights, setup: Setup) -> Memory:
    """Return the memory of each device, from the trace of one device that holds the whole model.

    Args:
        traced: The trace of a micro-batch of one device.
        weights: What is sharded.
        setup: How it is trained.
    """
    lines, forward, backward = traced.lines, traced.ends["forward"], traced.ends["backward"]
    kept, share = weights.kept_bytes * weights.total, 1 / setup.parts
    gradients, gathered = lines["gradients"], lines["copies"]
    if setup.sharding == "ddp":
        gradients = np.full_like(gradients, kept)
    if setup.is_sharded:
        used, block = weights.used_bytes, weights.block
        gathered = np.full_like(gathered, used * (weights.rest + 3 * block))
        gathered[forward:backward] += used * (weights.rest + 2 * block) + weights.kept_bytes * block
        gathered[backward:] = 0
        gradients = gradients * share * kept / max(float(gradients[backward - 1]), 1.0)
    states, parameters = weights.state_bytes * weights.total * share, kept * share
    if not setup.is_sharded:
        parameters = float(lines["parameters"][0])  # with buffers
    host = 0.0
    if setup.sharding == "offload":
        host, parameters, states, gradients = 2 * parameters + states, 0.0, 0.0, gradients * 0
    temporary = lines["temporary"].copy()
    temporary[backward:] *= share
    whole: dict[Part, Line] = {
        "parameters": np.full_like(gradients, parameters),
        "gradients": gradients,
        "states": np.full_like(gradients, states),
        "activations": lines["activations"] + lines["batch"],
        "gathered": gathered,
        "temporary": temporary,
    }
    varying = whole["activations"] + whole["gathered"] + whole["temporary"]
    whole["fragmentation"] = setup.fragmentation * varying
    total = np.sum(list(whole.values()), axis=0)
    moments: dict[Phase, dict[Part, int]] = {}
    for phase, start, end in zip(PHASES, (0, forward, backward), (forward, backward, len(total)), strict=True):
        step = start + int(total[start:end].argmax())
        moments[phase] = {part: int(line[step]) for part, line in whole.items()}
    return Memory(moments=moments, host_bytes=int(host))


def trace_shape(shape: Shape, setup: Setup) -> Trace:
    """Return the trace of one micro-batch of a described transformer on one device, without its optimizer.

    Two and three blocks are traced, with one and two sequences; the rest is exactly linear in both. A test compares it with
    the trace of a whole transformer.
    """
    shape.check()
    plain = replace(setup, sharding="none", ranks=1, states="none", fragmentation=0)
    autocast = setup.precision == "mixed" and not setup.is_sharded

    def longer(layers: int) -> Trace:
        one, two, three = (
            partial(trace_whole, replace(shape, layers=layers), replace(plain, batch=batch), autocast=autocast)
            for batch in (1, 2, 3)  # a single sequence may take other operators
        )
        return one() if setup.batch == 1 else _longer(two(), three(), setup.batch - 2)

    if shape.layers < FEW:
        return longer(shape.layers)
    small, large = longer(FEW - 1), longer(FEW)
    more, forward, backward = shape.layers - FEW + 1, small.ends["forward"] - 1, small.ends["backward"] - 1
    lines = {kind: line.copy() for kind, line in small.lines.items()}
    for kind, change in lines.items():
        last, turn = large.lines[kind], small.marks["backward"]
        if kind in ("activations", "copies"):  # of all blocks, until the backward pass reaches the first
            change[:turn] += more * (last[large.ends["forward"] - 1] - change[forward])
        elif kind == "gradients":  # of all blocks but the first
            change[turn:] += more * (last[large.ends["backward"] - 1] - change[backward])
        elif kind == "parameters":
            lines[kind] = change + more * (last[0] - change[0])
    return Trace(lines=lines, ends=small.ends, flops=small.flops + more * (large.flops - small.flops), marks=small.marks)


@lru_cache(maxsize=256)
def trace_whole(shape: Shape, setup: Setup, *, autocast: bool) -> Trace:
    """Trace forward and backward of a described transformer, every block of it, on fake tensors.

    Args:
        shape: The transformer.
        setup: Its precision, attention, checkpointing, batch and length.
        autocast: Compute in bfloat16 by `torch.autocast`, with weights in float32. Otherwise weights and computation have
            one precision: bfloat16 for `mixed`, as under FSDP2's mixed precision.
    """
    before = torch.get_default_dtype()
    with FakeTensorMode():
        try:
            torch.set_default_dtype(torch.float32 if autocast or setup.precision == "float32" else torch.bfloat16)
            model = Transformer(shape, flash=setup.flash, recomputed=setup.recomputed)
            tokens = torch.zeros(setup.batch, setup.length + 1, dtype=torch.long)

            def loss() -> torch.Tensor:
                with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                    found: torch.Tensor = model(tokens)
                return found

            return trace(model, loss, batch=tokens, marked=model.blocks[0])
        finally:
            torch.set_default_dtype(before)


def _longer(few: Trace, more: Trace, times: int) -> Trace:
    """Add the difference of two traces `times` times."""
    lines = {kind: line + times * (more.lines[kind] - line) for kind, line in few.lines.items()}
    return Trace(lines=lines, ends=few.ends, flops=few.flops + times * (more.flops - few.flops), marks=few.marks)
