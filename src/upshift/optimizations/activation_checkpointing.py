"""Forget activations in the forward pass and compute them again in the backward pass.

Relieves:  memory: only block inputs are kept. It costs time: one more forward pass of the blocks.
Numerics:  exact: the same operations with the same random numbers, done twice.
Limits:    models with a list of like blocks (ModuleList, Sequential).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from upshift.core.errors import JobError
from upshift.core.facts import Facts
from upshift.core.live import LiveJob, Seam, Undo
from upshift.core.modules import repeated_blocks
from upshift.core.optimization import Bottleneck, Card, Check, Fit, Numerics, Optimization, StepTrace


@dataclass(frozen=True, kw_only=True)
class ActivationCheckpointing(Optimization):
    """Recompute the activations of repeated blocks.

    Attributes:
        every: Checkpoint every so-manieth block; 1 is each.
    """

    every: int = 1

    card: ClassVar[Card] = Card(
        name="activation_checkpointing",
        summary="activations computed again in the backward pass instead of kept",
        relieves=Bottleneck.MEMORY,
        numerics=Numerics.EXACT,
        seam=Seam.MODEL,
        source="Chen et al. 2016, Training deep nets with sublinear memory cost",
        memory_technique=True,
    )

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"every must be at least 1, not {self.every}")

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Fit where blocks repeat; it never saves time by itself."""
        if facts.job.repeated_blocks < 2:
            return Fit.no("the model has no list of like blocks to checkpoint")
        return Fit.yes(max_gain_frac=0.0, settings=[cls()])

    def apply(self, live: LiveJob) -> Undo:
        """Wrap the forward of every chosen block."""
        blocks = repeated_blocks(live.model)[:: self.every]
        if not blocks:
            raise JobError("activation_checkpointing found no list of like blocks: take it out of the plan.")
        own = [vars(block).get("forward") for block in blocks]
        for block in blocks:
            block.forward = _checkpointed(live, block, block.forward)

        def undo() -> None:
            for block, forward in zip(blocks, own, strict=True):
                del block.forward
                if forward is not None:
                    block.forward = forward

        return undo

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Blocks ran twice in a training step: once forward, once again for backward."""
        forward, again = (int(trace.counters.get(name, 0)) for name in ("blocks_checkpointed", "blocks_run"))
        return [Check("blocks computed again", again >= 2 * forward > 0, f"{forward} checkpointed, {again} runs")]


def _checkpointed(live: LiveJob, block: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if not (block.training and torch.is_grad_enabled()):
            return forward(*args, **kwargs)
        if torch.compiler.is_compiling():
            return checkpoint(forward, *args, use_reentrant=False, **kwargs)
        again = False

        def run(*args: Any, **kwargs: Any) -> Any:
            nonlocal again
            live.count("blocks_run")
            if not again:
                again = True
                return forward(*args, **kwargs)
            # The backward pass runs outside the plan's contexts, and is no reason to update statistics once more.
            with live.contexts(), _kept_buffers(block):
                return forward(*args, **kwargs)

        live.count("blocks_checkpointed")
        return checkpoint(run, *args, use_reentrant=False, **kwargs)

    return wrapped


@contextmanager
def _kept_buffers(block: nn.Module) -> Iterator[None]:
    """Put the buffers of a block (BatchNorm's running statistics) back to where they were."""
    before = [(buffer, buffer.clone()) for buffer in block.buffers()]
    try:
        yield
    finally:
        for buffer, value in before:
            buffer.data.copy_(value)  # `data`: autograd, which may have saved the buffer, needs not know
