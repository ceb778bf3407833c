"""Compute several micro-batches of one update as one larger batch: fewer, larger operators.

Relieves:  compute: the fixed cost of each forward and backward pass. It takes more memory, never less.
Numerics:  rounding: an update keeps its samples, and its loss is normalised by the weight of all of them, so the gradient is
           the same sum in another order.
Limits:    jobs with accumulation above 1, and map-style data; no BatchNorm, because a larger batch has other statistics,
           which is other mathematics and no rounding; not for a loss that compares the samples of a batch with one another
           (contrastive learning). Dropout and a collate that draws random numbers draw others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hasten.core.card import Bottleneck, Card, Check, Numerics, StepTrace, Trait
from hasten.core.errors import JobError
from hasten.core.facts import Facts
from hasten.core.live import LiveJob
from hasten.core.optimization import Fit, Optimization
from hasten.core.seams import Seam, Undo, replace_attribute

CANDIDATES = (0, 4, 2)


@dataclass(frozen=True, kw_only=True)
class MergedMicrobatches(Optimization):
    """Accumulation in fewer, larger steps.

    Attributes:
        merge: Micro-batches of an update that become one batch; 0 merges all of them, 1 is off.
    """

    merge: int = 2

    card: ClassVar[Card] = Card(
        name="merged_microbatches",
        summary="several micro-batches of an update computed as one batch",
        relieves=Bottleneck.COMPUTE,
        numerics=Numerics.ROUNDING,
        seam=Seam.BACKWARD,
        source=(
            "Hugging Face Transformers documentation, Gradient accumulation: only where a larger batch does not fit "
            "(https://huggingface.co/docs/transformers/en/grad_accumulation)"
        ),
        prior=0.4,
        conflicts=("microbatch",),
        traits=frozenset({Trait.MICROBATCH}),
        script_advice="the script cuts its batches itself: make its micro-batches larger",
        left_to={
            "lightning": "a larger batch_size of the loader, and Trainer(accumulate_grad_batches=...) smaller by as much",
            "transformers": "TrainingArguments(gradient_accumulation_steps=...) to fewer parts, and a larger batch size",
        },
    )

    def __post_init__(self) -> None:
        if self.merge < 0:
            raise ValueError(f"merge must be at least 0, not {self.merge}")

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Fit where an update has several micro-batches whose samples do not depend on one another."""
        job = facts.job
        if job.accumulation == 1:
            return Fit.no("an update is one micro-batch: nothing to merge")
        if job.num_samples is None:
            return Fit.no("an iterable dataset hands out its micro-batches one by one")
        norms = [name for name in job.module_counts if "BatchNorm" in name]
        if norms:
            return Fit.no(f"the model has {norms[0]}, whose statistics are those of the micro-batch")
        settings = [cls(merge=merge) for merge in CANDIDATES if merge < job.accumulation]
        return Fit.yes(max_gain_frac=facts.compute_frac, settings=settings)

    def apply(self, live: LiveJob) -> Undo:
        """Let the loop take the batches of an update together."""
        if live.order is None:
            raise JobError("merged_microbatches needs a map-style dataset: take it out of the plan.")
        return replace_attribute(live, "merge", self.merge)

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Batches were computed that hold more samples than a micro-batch."""
        batches, merged = (int(trace.counters.get(name, 0)) for name in ("batches_computed", "batches_merged"))
        return [Check("micro-batches merged", merged > 0, f"{merged} of {batches} batches are larger than a micro-batch")]

    @classmethod
    def computing(cls, *, parts: int = 1, merge: int = 1) -> Optimization | None:
        """Several micro-batches at once."""
        return cls(merge=merge) if merge > 1 else None
