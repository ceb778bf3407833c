"""Drop activations in the forward pass and recompute them in the backward pass.

Relieves:  memory: only block inputs are stored, plus as many activations as a budget allows. It costs time, because
           operators run twice.
Numerics:  exact: the same operations run twice with the same random numbers.
Limits:    models with a list of repeated blocks (ModuleList, Sequential). A budget is measured on the first batch of the
           first epoch, and needs blocks that run once per step. Under torch.compile, a selected block stores only its input.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from hasten.core.card import Bottleneck, Card, Check, Numerics, StepTrace
from hasten.core.errors import JobError
from hasten.core.facts import Facts
from hasten.core.live import LiveJob
from hasten.core.modules import kept_buffers, repeated_blocks
from hasten.core.optimization import Fit, Optimization
from hasten.core.seams import Seam, Undo
from hasten.core.source_edits import SourceEdits, UnwritableError
from hasten.optimizations.parts.activations import OpCall, choose, measure_activations

BUDGET_MET = 0.9
"""Share of the requested saving from which a budget counts as met."""


@dataclass(frozen=True, kw_only=True)
class ActivationCheckpointing(Optimization):
    """Recompute activations of repeated blocks.

    Attributes:
        every: Checkpoint one block in every N; 1 checkpoints all blocks.
        save_frac: Share of the activation memory to save, below 1. The activations that are cheapest to recompute, by
            measured bytes and seconds, are dropped first. 0 sets no budget: blocks store only their inputs.
    """

    every: int = 1
    save_frac: float = 0.0

    card: ClassVar[Card] = Card(
        name="activation_checkpointing",
        summary="recompute activations in the backward pass instead of storing them",
        relieves=Bottleneck.MEMORY,
        numerics=Numerics.EXACT,
        seam=Seam.FORWARD,
        source="Chen et al. 2016, Training deep nets with sublinear memory cost; torch.utils.checkpoint, selective policies",
        hoped_gain=(
            "memory of a 1000-layer residual network reduced from 48G to 7G, for 30 % more running time "
            "(https://arxiv.org/abs/1604.06174)"
        ),
        memory_technique=True,
        saves_memory=True,
        after=("precision", "attention_backend"),
        in_scripts=True,
        left_to={
            "transformers": "TrainingArguments(gradient_checkpointing=True)",
        },
    )

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"every must be at least 1, not {self.every}")
        if not 0.0 <= self.save_frac < 1.0:
            raise ValueError(f"save_frac must be at least 0 and below 1, not {self.save_frac}")

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Applies if the model has repeated blocks. On its own it never saves time."""
        if facts.job.repeated_blocks < 2:
            return Fit.no("the model has no list of repeated blocks to checkpoint")
        # An iterable dataset gives no batch to measure a budget on.
        budgets = [] if facts.job.num_samples is None else [cls(save_frac=0.5)]
        return Fit.yes(max_gain_frac=0.0, settings=[*budgets, cls()])

    def apply(self, live: LiveJob) -> Undo:
        """Wrap the forward method of each selected block."""
        blocks = list(dict.fromkeys(repeated_blocks(live.model)))[:: self.every]  # a block may be in the list twice
        if not blocks:
            raise JobError("activation_checkpointing found no list of repeated blocks: remove it from the plan.")
        keep, saved_frac = self._keep(live, blocks)
        chosen = [(block, calls) for block, calls in zip(blocks, keep, strict=True) if calls is not None]
        own = [vars(block).get("forward") for block, _ in chosen]
        for block, calls in chosen:
            block.forward = _checkpointed(live, block, block.forward, calls, saved_frac)

        def undo() -> None:
            for (block, _), forward in zip(chosen, own, strict=True):
                del block.forward
                if forward is not None:
                    block.forward = forward

        return undo

    def _keep(self, live: LiveJob, blocks: list[nn.Module]) -> tuple[tuple[frozenset[OpCall] | None, ...], float]:
        """Return what each block stores (None: everything, unchanged), and the measured share of memory that this saves."""
        if not self.save_frac:
            return (frozenset[OpCall](),) * len(blocks), 0.0
        if live.order is None:
            raise JobError("activation_checkpointing cannot measure a budget on an iterable dataset: set save_frac = 0.")
        first = live.order(0)[0]
        ranks = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
        batch = live.to_device(live.pipeline.fetch(0, first[: max(1, len(first) // ranks)]))
        choice = choose(measure_activations(live, blocks, batch), self.save_frac)
        return choice.keep, choice.saved_frac

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Check that each block ran twice in a training step: in the forward pass, and again for the backward pass."""
        forward, runs = (int(trace.counters.get(name, 0)) for name in ("blocks_checkpointed", "blocks_run"))
        checks = [Check("blocks recomputed", runs >= 2 * forward > 0, f"{forward} checkpointed, {runs} runs")]
        if self.save_frac:
            saved = trace.counters.get("activations_saved_frac", 0.0)
            seen = f"{saved:.0%} of the activation memory saved, {self.save_frac:.0%} requested"
            checks.append(Check("the memory budget is met", saved >= BUDGET_MET * self.save_frac, seen))
        return checks

    def framework_setting(self, framework: str, given: Any) -> str | None:
        """Return an empty string if the arguments already enable it."""
        return "" if getattr(given, "gradient_checkpointing", False) else super().framework_setting(framework, given)

    def write_patch(self, script: SourceEdits) -> str:
        """Raise UnwritableError: the change belongs in the model's own forward method."""
        chosen = f"one block in {self.every}" if self.every > 1 else "each block"
        lines = (
            f"# in the model's forward, for {chosen}",
            "x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)",
        )
        raise UnwritableError("the change belongs in the model's forward method", *(() if self.save_frac else lines))


def _checkpointed(
    live: LiveJob, block: nn.Module, forward: Callable[..., Any], keep: frozenset[OpCall], saved_frac: float
) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        live.count("blocks_run")
        return forward(*args, **kwargs)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if not (block.training and torch.is_grad_enabled()):
            return forward(*args, **kwargs)
        if torch.compiler.is_compiling():
            return checkpoint(forward, *args, use_reentrant=False, **kwargs)
        live.count("blocks_checkpointed")
        live.counters["activations_saved_frac"] = saved_frac
        return checkpoint(run, *args, use_reentrant=False, context_fn=lambda: _contexts(live, block, keep), **kwargs)

    return wrapped


Contexts: TypeAlias = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]


def _contexts(live: LiveJob, block: nn.Module, keep: frozenset[OpCall]) -> Contexts:
    """Return the contexts for the first run and for the recomputation of a block."""
    first, second = _selective(keep) if keep else (nullcontext(), nullcontext())

    @contextmanager
    def again() -> Iterator[None]:
        # The backward pass runs outside the plan's contexts. Buffers are preserved so that statistics update only once.
        with kept_buffers(block), live.contexts(), second:
            yield

    return first, again()


def _selective(keep: frozenset[OpCall]) -> Contexts:
    seen: Counter[tuple[bool, str]] = Counter()

    def policy(context: Any, func: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
        name = str(func)
        number = seen[context.is_recompute, name]
        seen[context.is_recompute, name] += 1
        return CheckpointPolicy.MUST_SAVE if (name, number) in keep else CheckpointPolicy.PREFER_RECOMPUTE

    first, second = create_selective_checkpoint_contexts(policy)
    return first, second
