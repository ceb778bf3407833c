"""Lay the samples of a batch end to end instead of padding each to the longest.

Relieves:  padding: no position is computed that does not count.
Numerics:  rounding: the same samples in the same batches, the same sums in another order.
Limits:    the job must know how to pack (`collate_packed`), and its model must keep attention within each sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from upshift.core.batch import padded_length
from upshift.core.errors import JobError
from upshift.core.facts import Facts
from upshift.core.live import LiveJob, Seam, Undo, replace_attribute
from upshift.core.optimization import Bottleneck, Card, Check, Fit, Numerics, Optimization, StepTrace


@dataclass(frozen=True, kw_only=True)
class SequencePacking(Optimization):
    """Packed batches."""

    card: ClassVar[Card] = Card(
        name="sequence_packing",
        summary="samples laid end to end without padding, attention kept within each",
        relieves=Bottleneck.PADDING,
        numerics=Numerics.ROUNDING,
        seam=Seam.DATASET,
        source="Krell et al. 2021, Efficient sequence packing without cross-contamination",
        hoped_gain=(
            "2x for phase 2 of BERT's pre-training, where half of all tokens are padding (https://arxiv.org/abs/2107.02027)"
        ),
        saves_memory=True,
        prior=0.9,
        conflicts=("trim_padding", "length_bucketing"),
    )

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Fit where the job can pack and its batches are padded."""
        if not facts.job.has_collate_packed:
            return Fit.no("the job does not say how to pack samples: write collate_packed(self, samples)")
        if not facts.job.has_length:
            return Fit.no("the job does not say how long a sample is: write length(self, sample)")
        if facts.padding_frac <= 0:
            return Fit.no("there is no padding in the batches")
        return Fit.yes(max_gain_frac=facts.ceiling_frac("padding"), settings=[cls()])

    def apply(self, live: LiveJob) -> Undo:
        """Collate in the job's packed way."""
        if not live.job.overrides("collate_packed"):
            raise JobError("sequence_packing needs collate_packed(self, samples) in the job: take it out of the plan.")
        return replace_attribute(live.pipeline, "collate", _Pack(live))

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Samples came packed, and a row held exactly their positions."""
        positions, samples = trace.counters.get("positions_packed", 0), trace.counters.get("samples_packed", 0)
        return [Check("samples laid end to end", samples > 0, f"{samples:.0f} samples in {positions:.0f} positions")]


class _Pack:
    """Packs, after making sure that no position is lost and none is padding."""

    def __init__(self, live: LiveJob) -> None:
        self._live = live

    def __call__(self, samples: list[Any]) -> Any:
        job = self._live.job
        batch = job.collate_packed(samples)
        wanted, seen = sum(job.length(sample) for sample in samples), padded_length(batch, 1)
        if seen != wanted:
            raise JobError(
                f"{type(job).__name__}.collate_packed gave a row of {seen} positions for {len(samples)} samples that have "
                f"{wanted} by length(sample). Return tensors [1, total] that hold each sample once and no padding."
            )
        self._live.count("positions_packed", wanted)
        self._live.count("samples_packed", len(samples))
        return batch
