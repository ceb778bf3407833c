"""Omit the short last batch of each epoch.

Relieves:  compute: a short batch has the fixed cost of a full one, and its shape causes recompilation.
Numerics:  training: each epoch omits a few samples, and no update uses a short batch.
Limits:    map-style datasets in shuffled order; otherwise the same samples would be omitted in every epoch. The number of
           updates, and with it the learning-rate schedule, does not change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hasten.core.card import Bottleneck, Card, Check, Numerics, StepTrace
from hasten.core.errors import JobError
from hasten.core.facts import Facts
from hasten.core.live import BatchOrder, LiveJob
from hasten.core.optimization import Fit, Optimization
from hasten.core.seams import Seam, Undo, replace_attribute
from hasten.core.source_edits import SourceEdits, UnwritableError


@dataclass(frozen=True, kw_only=True)
class DropLast(Optimization):
    """Full batches only."""

    card: ClassVar[Card] = Card(
        name="drop_last",
        summary="omit the short last batch of each epoch",
        relieves=Bottleneck.COMPUTE,
        numerics=Numerics.TRAINING,
        seam=Seam.LOADER,
        source="PyTorch documentation, torch.utils.data.DataLoader, `drop_last`",
        prior=0.3,
        claims=frozenset({"order"}),
        script_advice="it changes which samples are trained on: set DataLoader(..., drop_last=True) if that is acceptable",
        left_to={
            "transformers": "TrainingArguments(dataloader_drop_last=True)",
        },
    )

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Applies if the last batch of an epoch is short and the job defines a quality metric."""
        job = facts.job
        if job.num_samples is None:
            return Fit.no("the length of an iterable dataset is unknown")
        if job.num_samples % job.batch_size == 0:
            return Fit.no(f"every batch is full: {job.num_samples} samples in batches of {job.batch_size}")
        if job.num_samples < job.batch_size:
            return Fit.no(f"the {job.num_samples} samples do not fill one batch of {job.batch_size}")
        if not job.shuffle:
            return Fit.no("the samples come in a fixed order: the same samples would never be trained on")
        if not job.has_quality:
            return Fit.no("it omits samples, and the job defines no quality metric: set quality")
        batches = -(-job.num_samples // job.batch_size)
        return Fit.yes(max_gain_frac=facts.compute_frac / batches, settings=[cls()])

    def apply(self, live: LiveJob) -> Undo:
        """Replace the order of samples."""
        if live.order is None:
            raise JobError("drop_last needs a map-style dataset: remove it from the plan.")
        return replace_attribute(live, "order", _FullBatches(live.order))

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Check that the default order has a short batch and the active order has none."""
        order = live.order
        if not isinstance(order, _FullBatches):
            return [Check("no short batch", passed=False, seen="the default order is active")]
        plain, full = (sorted({len(batch) for batch in batches}) for batches in (order.plain(0), order(0)))
        return [Check("no short batch", len(full) == 1 < len(plain), f"batches of {full} samples, default order {plain}")]

    def by_hand(self) -> tuple[str, ...]:
        """Return the loader argument."""
        return ("DataLoader(..., drop_last=True)",)

    def write_patch(self, script: SourceEdits) -> str:
        """Set `drop_last`, unless a batch sampler creates the batches."""
        loader = script.loader()
        if loader.given.get("batch_sampler", "None") != "None":
            raise UnwritableError(
                f"a batch sampler creates the batches ({loader.place})", "# set drop_last=True in the batch sampler"
            )
        return loader.set({"drop_last": "True"})


class _FullBatches:
    """The order of an epoch without short batches. An epoch of a single batch keeps it."""

    def __init__(self, plain: BatchOrder) -> None:
        self.plain = plain

    def __call__(self, epoch: int) -> list[list[int]]:
        batches = self.plain(epoch)
        full = max(len(batch) for batch in batches)
        return [batch for batch in batches if len(batch) == full]
