"""Validate in larger batches than training.

Relieves:  validation: without a backward pass no activations are stored, so larger batches fit in memory and use the device
           better.
Numerics:  rounding: training does not change. The held-out metric is summed in a different order.
Limits:    if the output for a sample depends on its batch (batch statistics in evaluation), the metric changes. The
           comparison of the metric detects that.
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
"""Share of the memory above which memory counts as short."""


@dataclass(frozen=True, kw_only=True)
class ValidationBatch(Optimization):
    """The size of a validation batch.

    Attributes:
        times: Size of a validation batch, in training batches; 1 is off.
    """

    times: int = 4

    card: ClassVar[Card] = Card(
        name="validation_batch",
        summary="validate in larger batches than training",
        relieves=Bottleneck.VALIDATION,
        numerics=Numerics.ROUNDING,
        seam=Seam.AROUND,
        source="PyTorch documentation, torch.inference_mode: nothing is stored for a backward pass",
        hoped_gain=(
            "validation of large models was 5 to 10x slower with the small batches of training "
            "(https://github.com/deepset-ai/FARM/issues/604)"
        ),
        prior=0.4,
        event="validation",
        script_advice="the script has its own validation: use a larger batch_size in its validation DataLoader",
        left_to={
            "transformers": "TrainingArguments(per_device_eval_batch_size=...)",
        },
    )

    def __post_init__(self) -> None:
        if self.times < 1:
            raise ValueError(f"times must be at least 1, not {self.times}")

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Applies if validation takes several batches and memory is not short. At most its own time can be saved."""
        if facts.epoch_s > 0 and facts.validation_s <= 0:
            return Fit.no("no validation was measured: there is no held-out data")
        if facts.epoch_s > 0 and facts.validation_batches < 2:
            return Fit.no("the held-out data already fits in one batch")
        if facts.peak_memory_bytes > MEMORY_SHORT * facts.memory_limit_bytes:
            peak, limit = facts.peak_memory_bytes / 2**30, facts.memory_limit_bytes / 2**30
            return Fit.no(f"memory is short: training uses up to {peak:.1f} of {limit:.1f} GiB")
        times = [cls(times=4)] if facts.validation_batches < 8 else [cls(times=4), cls(times=16)]
        return Fit.yes(max_gain_frac=facts.epoch_frac(facts.validation_s), settings=times)

    def apply(self, live: LiveJob) -> Undo:
        """Set the size of validation batches."""
        return replace_attribute(live.around, "validation_batches", self.times)

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Check that validation used larger batches than training."""
        seen = int(trace.counters.get("validation_large_batches", 0))
        return [Check("validation batches larger than training batches", seen > 0, f"{seen} in a rehearsal")]

    def write_patch(self, script: SourceEdits) -> str:
        """Raise UnwritableError: Hasten does not read which loader the validation uses."""
        raise UnwritableError(
            "Hasten does not read which loader the validation uses",
            f"DataLoader(valid_data, batch_size={self.times} * batch_size)",
        )
