"""Leave out the short batch of an epoch.

Relieves:  compute: a short batch pays the fixed cost of a whole one, and its shape makes compiled code compile again.
Numerics:  training: a few samples of each epoch are not visited, and no update is made of few samples.
Limits:    map-style datasets in shuffled order, else the same samples would never be seen; the updates of the run, and
           with them the learning-rate schedule, stay as many.
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
        summary="the short last batch of each epoch is left out",
        relieves=Bottleneck.COMPUTE,
        numerics=Numerics.TRAINING,
        seam=Seam.LOADER,
        source="PyTorch documentation, torch.utils.data.DataLoader, `drop_last`",
        prior=0.3,
        claims=frozenset({"order"}),
        script_advice="it would train on other samples: DataLoader(..., drop_last=True) is yours to decide",
        left_to={
            "transformers": "TrainingArguments(dataloader_drop_last=True)",
        },
    )

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Fit where an epoch ends in a short batch, and the job says what is not worse."""
        job = facts.job
        if job.num_samples is None:
            return Fit.no("how an iterable dataset ends is not known before it does")
        if job.num_samples % job.batch_size == 0:
            return Fit.no(f"every batch is full: {job.num_samples} samples in batches of {job.batch_size}")
        if job.num_samples < job.batch_size:
            return Fit.no(f"the {job.num_samples} samples do not fill one batch of {job.batch_size}")
        if not job.shuffle:
            return Fit.no("the samples come in a fixed order: the same ones would never be trained on")
        if not job.has_quality:
            return Fit.no("it leaves samples out, and the job does not say what is not worse: set quality")
        batches = -(-job.num_samples // job.batch_size)
        return Fit.yes(max_gain_frac=facts.compute_frac / batches, settings=[cls()])

    def apply(self, live: LiveJob) -> Undo:
        """Replace the order of samples."""
        if live.order is None:
            raise JobError("drop_last needs a map-style dataset: take it out of the plan.")
        return replace_attribute(live, "order", _FullBatches(live.order))

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """The plain order has a short batch, and the order in force has none."""
        order = live.order
        if not isinstance(order, _FullBatches):
            return [Check("no short batch", passed=False, seen="the plain order is in force")]
        plain, full = (sorted({len(batch) for batch in batches}) for batches in (order.plain(0), order(0)))
        return [Check("no short batch", len(full) == 1 < len(plain), f"batches of {full} samples, plain order {plain}")]

    def by_hand(self) -> tuple[str, ...]:
        """The loader's argument."""
        return ("DataLoader(..., drop_last=True)",)

    def write_patch(self, script: SourceEdits) -> str:
        """Set `drop_last`, unless a sampler makes the batches."""
        loader = script.loader()
        if loader.given.get("batch_sampler", "None") != "None":
            raise UnwritableError(f"a sampler makes the batches ({loader.place})", "give that one drop_last=True")
        return loader.set({"drop_last": "True"})


class _FullBatches:
    """The order of an epoch without its short batches; an epoch of one batch keeps it."""

    def __init__(self, plain: BatchOrder) -> None:
        self.plain = plain

    def __call__(self, epoch: int) -> list[list[int]]:
        batches = self.plain(epoch)
        full = max(len(batch) for batch in batches)
        return [batch for batch in batches if len(batch) == full]
