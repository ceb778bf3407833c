"""Compute each batch in parts and add their gradients up: the optimizer sees the same batch.

Relieves:  memory: the activations of one part at a time. It costs time: smaller operators use the machine less well.
Numerics:  rounding: the loss is normalised over the whole batch, so the gradient is the same sum in another order.
Limits:    no BatchNorm, whose statistics are the batch's; no packed batches; not for a loss that compares the samples
           of a batch with one another (contrastive learning). Dropout draws other random numbers.
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
        parts: Pieces that a batch is cut into; 1 is off.
    """

    parts: int = 2

    card: ClassVar[Card] = Card(
        name="microbatch",
        summary="each batch computed in parts, their gradients added up",
        relieves=Bottleneck.MEMORY,
        numerics=Numerics.ROUNDING,
        seam=Seam.BACKWARD,
        source="Huang et al. 2019, GPipe (micro-batches); MosaicML Composer, `device_train_microbatch_size`",
        memory_technique=True,
        saves_memory=True,
        conflicts=("sequence_packing",),
        traits=frozenset({Trait.MICROBATCH}),
        script_advice="the script writes its own loop: accumulate gradients over parts of the batch in it",
    )

    def __post_init__(self) -> None:
        if self.parts < 1:
            raise ValueError(f"parts must be at least 1, not {self.parts}")

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Fit where a batch holds several samples that do not depend on one another; it never saves time by itself."""
        norms = [name for name in facts.job.module_counts if "BatchNorm" in name]
        if norms:
            return Fit.no(f"the model has {norms[0]}, whose statistics are those of the whole batch")
        if facts.job.batch_size < 2:
            return Fit.no("a batch is a single sample: nothing to cut")
        settings = [cls(parts=parts) for parts in CANDIDATES if parts <= facts.job.batch_size]
        return Fit.yes(max_gain_frac=0.0, settings=settings)

    def apply(self, live: LiveJob) -> Undo:
        """Let the loop cut each batch."""
        return replace_attribute(live, "micro_parts", self.parts)

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Batches were computed in more parts than there were batches."""
        batches, parts = (int(trace.counters.get(name, 0)) for name in ("batches_cut", "batch_parts"))
        return [Check("batches computed in parts", parts > batches > 0, f"{batches} batches cut into {parts} parts")]

    def framework_setting(self, framework: str, given: Any) -> str | None:
        """Trainers accumulate gradients over smaller batches."""
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
        """Each micro-batch in parts."""
        return cls(parts=parts) if parts > 1 else None

    def write_patch(self, script: SourceEdits) -> str:
        """Not written: only the user knows what of a batch can be divided."""
        raise UnwritableError(
            "how a batch is cut depends on what it holds",
            f"for x_part, y_part in zip(x.chunk({self.parts}), y.chunk({self.parts})):",
            "    loss = loss_fn(model(x_part), y_part) * len(x_part) / len(x)",
            "    loss.backward()",
        )
