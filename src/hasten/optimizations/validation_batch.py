"""Validate in larger batches than those of training.

Relieves:  validation: without a backward pass nothing is kept, so larger batches fit and keep the device busier.
Numerics:  rounding: the training is untouched; the held-out metric is summed in another order.
Limits:    a model whose output for a sample depends on its batch (normalisation by batch statistics in evaluation too)
           measures otherwise; the comparison of the metric finds that out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hasten.core.card import Bottleneck, Card, Check, Numerics, StepTrace
from hasten.core.facts import Facts
from hasten.core.live import LiveJob
from hasten.core.optimization import Fit, Optimization
from hasten.core.seams import Seam, Undo, replace_attribute
from hasten.core.source_edits import SourceEdits, UnwritableError

MEMORY_SHORT = 0.8


@dataclass(frozen=True, kw_only=True)
class ValidationBatch(Optimization):
    """The size of a validation batch.

    Attributes:
        times: Training batches that one validation batch holds; 1 is off.
    """

    times: int = 4

    card: ClassVar[Card] = Card(
        name="validation_batch",
        summary="validation in larger batches than those of training",
        relieves=Bottleneck.VALIDATION,
        numerics=Numerics.ROUNDING,
        seam=Seam.AROUND,
        source="PyTorch documentation, torch.inference_mode: nothing is kept for a backward pass",
        hoped_gain=(
            "validation 5 to 10x slower where large models keep the small batches of training "
            "(https://github.com/deepset-ai/FARM/issues/604)"
        ),
        prior=0.4,
        event="validation",
        script_advice="the script writes its own validation: give its DataLoader there a larger batch_size",
        left_to={
            "transformers": "TrainingArguments(per_device_eval_batch_size=...)",
        },
    )

    def __post_init__(self) -> None:
        if self.times < 1:
            raise ValueError(f"times must be at least 1, not {self.times}")

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Fit where a pass takes several batches and memory is not short; at most the validation's time can be saved."""
        if facts.epoch_s > 0 and facts.validation_s <= 0:
            return Fit.no("no validation was measured: there is no held-out data")
        if facts.epoch_s > 0 and facts.validation_batches < 2:
            return Fit.no("the held-out data is one batch already")
        if facts.peak_memory_bytes > MEMORY_SHORT * facts.memory_limit_bytes:
            peak, limit = facts.peak_memory_bytes / 2**30, facts.memory_limit_bytes / 2**30
            return Fit.no(f"memory is short: {peak:.1f} of {limit:.1f} GiB at the peak of training")
        times = [cls(times=4)] if facts.validation_batches < 8 else [cls(times=4), cls(times=16)]
        return Fit.yes(max_gain_frac=facts.epoch_frac(facts.validation_s), settings=times)

    def apply(self, live: LiveJob) -> Undo:
        """Set the size."""
        return replace_attribute(live.around, "validation_batches", self.times)

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Batches larger than those of training were measured."""
        seen = int(trace.counters.get("validation_large_batches", 0))
        return [Check("validation batches larger than those of training", seen > 0, f"{seen} in a rehearsal")]

    def write_patch(self, script: SourceEdits) -> str:
        """Not written: which loader evaluates is not read."""
        raise UnwritableError(
            "which loader evaluates is not read here", f"DataLoader(valid_data, batch_size={self.times} * batch_size)"
        )
