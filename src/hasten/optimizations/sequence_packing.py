"""Concatenate the samples of a batch instead of padding each to the longest.

Relieves:  padding: no padding is computed.
Numerics:  rounding: the same samples in the same batches, and the same sums in a different order.
Limits:    the job must define how to pack samples (`collate_packed`), and its model must keep attention within each sample.

Each packed row has a different length, and libraries that create a kernel for each shape (oneDNN in bfloat16, compilers)
would create new kernels at every update. If the job can extend its rows to a multiple, there are only a few shapes.
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
"""Multiple that gives few shapes, for 64 additional positions per row on average. On AVX-512 CPUs these cost no time."""


@dataclass(frozen=True, kw_only=True)
class SequencePacking(Optimization):
    """Packed batches.

    Attributes:
        multiple: Extend rows to a multiple of this number of positions, if the job supports it; 1 adds none.
    """

    multiple: int = 1

    card: ClassVar[Card] = Card(
        name="sequence_packing",
        summary="concatenate samples without padding, and keep attention within each sample",
        relieves=Bottleneck.PADDING,
        numerics=Numerics.ROUNDING,
        seam=Seam.DATASET,
        source="Krell et al. 2021, Efficient sequence packing without cross-contamination",
        hoped_gain=(
            "2x for phase 2 of BERT pre-training, where half of all tokens are padding (https://arxiv.org/abs/2107.02027)"
        ),
        saves_memory=True,
        prior=0.9,
        conflicts=("trim_padding", "length_bucketing"),
        script_advice="pack samples in the collate function, and keep attention within each sample",
    )

    def __post_init__(self) -> None:
        if self.multiple < 1:
            raise ValueError(f"multiple must be at least 1, not {self.multiple}")

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Applies if the job can pack samples and its batches contain padding."""
        if not facts.job.has_collate_packed:
            return Fit.no("the job does not define how to pack samples: implement collate_packed(self, samples)")
        if not facts.job.has_length:
            return Fit.no("the job does not define the length of a sample: implement length(self, sample)")
        if facts.padding_frac <= 0:
            return Fit.no("there is no padding in the batches")
        return Fit.yes(
            max_gain_frac=facts.ceiling_frac("padding"),
            settings=[cls(multiple=MULTIPLE if facts.job.packs_to_multiple else 1)],
        )

    def apply(self, live: LiveJob) -> Undo:
        """Replace the collate function with the job's packed one."""
        if not live.job.overrides("collate_packed"):
            raise JobError(
                "sequence_packing needs the method collate_packed(self, samples) in the job: implement it, or remove "
                "sequence_packing from the plan."
            )
        if self.multiple > 1 and not packs_to_multiple(live.job):
            raise JobError(
                f"sequence_packing with multiple={self.multiple} needs collate_packed(self, samples, multiple) in the job: "
                f"add the parameter, or set multiple = 1 in the plan."
            )
        return replace_attribute(live.pipeline, "collate", _Pack(live, self.multiple))

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Check that samples were packed."""
        positions, samples = trace.counters.get("positions_packed", 0), trace.counters.get("samples_packed", 0)
        return [Check("samples packed without padding", samples > 0, f"{samples:.0f} samples in {positions:.0f} positions")]


class _Pack:
    """Packs samples, and checks that no position is lost and that there is no padding other than that to the multiple."""

    def __init__(self, live: LiveJob, multiple: int) -> None:
        self._live, self._multiple = live, multiple

    def __call__(self, samples: list[Any]) -> Any:
        job: Any = self._live.job  # collate_packed of some jobs has no second parameter
        batch = job.collate_packed(samples, self._multiple) if self._multiple > 1 else job.collate_packed(samples)
        total, actual = sum(job.length(sample) for sample in samples), padded_length(batch, 1)
        expected = -(-total // self._multiple) * self._multiple
        if actual != expected:
            extended = f", extended to {expected} (a multiple of {self._multiple})" if self._multiple > 1 else ""
            raise JobError(
                f"{type(job).__name__}.collate_packed returned a row of {actual} positions for {len(samples)} samples whose "
                f"lengths by length(sample) sum to {total}{extended}. Return tensors [1, total] that contain each sample "
                f"once and no padding."
            )
        self._live.count("positions_packed", total)
        self._live.count("samples_packed", len(samples))
        return batch
