"""Compute several micro-batches of an update as one larger batch, with fewer and larger operators.

Relieves:  compute: the fixed cost of each forward and backward pass. It needs more memory.
Numerics:  rounding: an update keeps its samples, and its loss is normalised by their total weight, so the gradient is the
           same sum in a different order.
Limits:    jobs with accumulation above 1, and map-style datasets. It excludes BatchNorm, because a larger batch has
           different statistics, and losses that compare the samples of a batch with each other (contrastive learning).
           Dropout, and a collate function that draws random numbers, draw different ones.
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
    """Gradient accumulation in fewer, larger batches.

    Attributes:
        merge: Number of micro-batches that become one batch; 0 merges all micro-batches of an update, 1 is off.
    """

    merge: int = 2

    card: ClassVar[Card] = Card(
        name="merged_microbatches",
        summary="compute several micro-batches of an update as one batch",
        relieves=Bottleneck.COMPUTE,
        numerics=Numerics.ROUNDING,
        seam=Seam.BACKWARD,
        source=(
            "Hugging Face Transformers documentation, Gradient accumulation: only if a larger batch does not fit "
            "(https://huggingface.co/docs/transformers/en/grad_accumulation)"
        ),
        prior=0.4,
        conflicts=("microbatch",),
        traits=frozenset({Trait.MICROBATCH}),
        script_advice="the script creates its micro-batches itself: make them larger",
        left_to={
            "lightning": "a smaller Trainer(accumulate_grad_batches=...), and a larger batch_size of the loader",
            "transformers": "a smaller TrainingArguments(gradient_accumulation_steps=...), and a larger batch size",
        },
    )

    def __post_init__(self) -> None:
        if self.merge < 0:
            raise ValueError(f"merge must be at least 0, not {self.merge}")

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Applies if an update has several micro-batches and the samples of a batch do not depend on each other."""
        job = facts.job
        if job.accumulation == 1:
            return Fit.no("an update is one micro-batch: there is nothing to merge")
        if job.num_samples is None:
            return Fit.no("an iterable dataset returns its micro-batches one by one")
        norms = [name for name in job.module_counts if "BatchNorm" in name]
        if norms:
            return Fit.no(f"the model has {norms[0]}, whose statistics depend on the micro-batch")
        settings = [cls(merge=merge) for merge in CANDIDATES if merge < job.accumulation]
        return Fit.yes(max_gain_frac=facts.compute_frac, settings=settings)

    def apply(self, live: LiveJob) -> Undo:
        """Make the loop merge the micro-batches of an update."""
        if live.order is None:
            raise JobError("merged_microbatches needs a map-style dataset: remove it from the plan.")
        return replace_attribute(live, "merge", self.merge)

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Check that some batches had more samples than a micro-batch."""
        batches, merged = (int(trace.counters.get(name, 0)) for name in ("batches_computed", "batches_merged"))
        return [Check("micro-batches merged", merged > 0, f"{merged} of {batches} batches are larger than a micro-batch")]

    @classmethod
    def computing(cls, *, parts: int = 1, merge: int = 1) -> Optimization | None:
        """Return the setting that merges `merge` micro-batches, or None for 1."""
        return cls(merge=merge) if merge > 1 else None
