"""Lay the samples of a batch end to end instead of padding each to the longest.

Relieves:  padding: no position is computed that does not count.
Numerics:  rounding: the same samples in the same batches, the same sums in another order.
Limits:    the job must know how to pack (`collate_packed`), and its model must keep attention within each sample.

Every packed row has a length of its own, and libraries that make a kernel for each shape (oneDNN in bfloat16, compilers)
would make new ones at every update. A job that can lengthen its rows to a multiple keeps the shapes few.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from hasten.core.batch import padded_length
from hasten.core.card import Bottleneck, Card, Check, Numerics, StepTrace
from hasten.core.errors import JobError
from hasten.core.facts import Facts
from hasten.core.live import LiveJob
from hasten.core.optimization import Fit, Optimization
from hasten.core.packing import packs_to_multiple
from hasten.core.seams import Seam, Undo, replace_attribute

MULTIPLE = 128
"""Few shapes at a cost of 64 positions a row on average; on AVX-512 CPUs rows of fewer shapes cost nothing more at all."""


@dataclass(frozen=True, kw_only=True)
class SequencePacking(Optimization):
    """Packed batches.

    Attributes:
        multiple: Rows are lengthened to a multiple of so many positions, where the job can do that; 1 adds none.
    """

    multiple: int = 1

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
        script_advice="which samples make a document cannot be seen from outside",
    )

    def __post_init__(self) -> None:
        if self.multiple < 1:
            raise ValueError(f"multiple must be at least 1, not {self.multiple}")

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Fit where the job can pack and its batches are padded."""
        if not facts.job.has_collate_packed:
            return Fit.no("the job does not say how to pack samples: write collate_packed(self, samples)")
        if not facts.job.has_length:
            return Fit.no("the job does not say how long a sample is: write length(self, sample)")
        if facts.padding_frac <= 0:
            return Fit.no("there is no padding in the batches")
        return Fit.yes(
            max_gain_frac=facts.ceiling_frac("padding"),
            settings=[cls(multiple=MULTIPLE if facts.job.packs_to_multiple else 1)],
        )

    def apply(self, live: LiveJob) -> Undo:
        """Collate in the job's packed way."""
        if not live.job.overrides("collate_packed"):
            raise JobError("sequence_packing needs collate_packed(self, samples) in the job: take it out of the plan.")
        if self.multiple > 1 and not packs_to_multiple(live.job):
            raise JobError(
                f"sequence_packing with multiple={self.multiple} needs collate_packed(self, samples, multiple) in the job: "
                f"add the parameter, or set multiple = 1 in the plan."
            )
        return replace_attribute(live.pipeline, "collate", _Pack(live, self.multiple))

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Samples came packed, and a row held exactly their positions."""
        positions, samples = trace.counters.get("positions_packed", 0), trace.counters.get("samples_packed", 0)
        return [Check("samples laid end to end", samples > 0, f"{samples:.0f} samples in {positions:.0f} positions")]


class _Pack:
    """Packs, after making sure that no position is lost and none is padding but for the multiple."""

    def __init__(self, live: LiveJob, multiple: int) -> None:
        self._live, self._multiple = live, multiple

    def __call__(self, samples: list[Any]) -> Any:
        job: Any = self._live.job  # some take no second argument
        batch = job.collate_packed(samples, self._multiple) if self._multiple > 1 else job.collate_packed(samples)
        wanted, seen = sum(job.length(sample) for sample in samples), padded_length(batch, 1)
        whole = -(-wanted // self._multiple) * self._multiple
        if seen != whole:
            rest = f"; lengthened to a multiple of {self._multiple} that makes {whole}" if self._multiple > 1 else ""
            raise JobError(
                f"{type(job).__name__}.collate_packed gave a row of {seen} positions for {len(samples)} samples that have "
                f"{wanted} by length(sample){rest}. Return tensors [1, total] that hold each sample once and no padding."
            )
        self._live.count("positions_packed", wanted)
        self._live.count("samples_packed", len(samples))
        return batch
