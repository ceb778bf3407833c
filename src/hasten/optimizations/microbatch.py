"""Compute each batch in parts and accumulate their gradients. The optimizer sees the same batch.

Relieves:  memory: only one part needs activations at a time. It costs time, because smaller operators are less efficient.
Numerics:  rounding: the loss is normalised over the whole batch, so the gradient is the same sum in a different order.
Limits:    no BatchNorm, whose statistics depend on the batch; no packed batches; no loss that compares the samples of a
           batch with each other (contrastive learning). Dropout draws different random numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from hasten.core.card import Bottleneck, Card, Check, Numerics, StepTrace, Trait
from hasten.core.facts import Facts
from hasten.core.live import LiveJob
from hasten.core.optimization import Fit, Optimization
from hasten.core.seams import Seam, Undo, replace_attribute
from hasten.core.source_edits import SourceEdits, UnwritableError

CANDIDATES = (2, 4)


@dataclass(frozen=True, kw_only=True)
class Microbatch(Optimization):
    """Gradient accumulation inside a batch.

    Attributes:
        parts: Number of parts of a batch; 1 is off.
    """

    parts: int = 2

    card: ClassVar[Card] = Card(
        name="microbatch",
        summary="compute each batch in parts, and accumulate their gradients",
        relieves=Bottleneck.MEMORY,
        numerics=Numerics.ROUNDING,
        seam=Seam.BACKWARD,
        source="Huang et al. 2019, GPipe (micro-batches); MosaicML Composer, `device_train_microbatch_size`",
        memory_technique=True,
        saves_memory=True,
        conflicts=("sequence_packing",),
        traits=frozenset({Trait.MICROBATCH}),
        script_advice="the script has its own loop: accumulate the gradients of parts of the batch in it",
    )

    def __post_init__(self) -> None:
        if self.parts < 1:
            raise ValueError(f"parts must be at least 1, not {self.parts}")

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Applies if a batch has several samples that do not depend on each other. On its own it never saves time."""
        norms = [name for name in facts.job.module_counts if "BatchNorm" in name]
        if norms:
            return Fit.no(f"the model has {norms[0]}, whose statistics depend on the whole batch")
        if facts.job.batch_size < 2:
            return Fit.no("a batch is a single sample and cannot be split")
        settings = [cls(parts=parts) for parts in CANDIDATES if parts <= facts.job.batch_size]
        return Fit.yes(max_gain_frac=0.0, settings=settings)

    def apply(self, live: LiveJob) -> Undo:
        """Make the loop split each batch."""
        return replace_attribute(live, "micro_parts", self.parts)

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Check that batches were computed in several parts."""
        batches, parts = (int(trace.counters.get(name, 0)) for name in ("batches_cut", "batch_parts"))
        return [Check("batches computed in parts", parts > batches > 0, f"{batches} batches split into {parts} parts")]

    def framework_setting(self, framework: str, given: Any) -> str | None:
        """Return the settings that make a Trainer accumulate gradients over smaller batches."""
        if framework == "lightning":
            wanted = given.accumulate_grad_batches * self.parts
            return f"divide the batch_size of the loader by {self.parts}, and set Trainer(accumulate_grad_batches={wanted})."
        size, steps = given.per_device_train_batch_size, given.gradient_accumulation_steps
        return (
            f"set TrainingArguments(per_device_train_batch_size={max(size // self.parts, 1)}, "
            f"gradient_accumulation_steps={steps * self.parts})."
        )

    @classmethod
    def computing(cls, *, parts: int = 1, merge: int = 1) -> Optimization | None:
        """Return the setting that computes each micro-batch in `parts` parts, or None for 1."""
        return cls(parts=parts) if parts > 1 else None

    def write_patch(self, script: SourceEdits) -> str:
        """Raise UnwritableError: only the author of the script knows how to split a batch."""
        raise UnwritableError(
            "how to split a batch depends on its contents",
            f"for x_part, y_part in zip(x.chunk({self.parts}), y.chunk({self.parts})):",
            "    loss = loss_fn(model(x_part), y_part) * len(x_part) / len(x)",
            "    loss.backward()",
        )
