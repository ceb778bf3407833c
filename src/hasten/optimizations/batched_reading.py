"""Read the samples of a batch in one call.

Relieves:  input: the cost of a single reading (Python calls, seeks, round trips) is paid once a batch.
Numerics:  exact: the same samples in the same order; the first batch is compared with single readings.
Limits:    the dataset must have `__getitems__` (torch's batched protocol), or, in a script, be a `TensorDataset` with
           torch's own collate function: its rows are picked at once, and not stacked; reading must draw no random numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from hasten.core.batch import content
from hasten.core.card import Bottleneck, Card, Check, Numerics, StepTrace
from hasten.core.errors import JobError
from hasten.core.facts import Facts
from hasten.core.live import LiveJob
from hasten.core.optimization import Fit, Optimization
from hasten.core.seams import Seam, Undo, add_to, replace_attribute
from hasten.core.source_edits import SourceEdits, UnwritableError


@dataclass(frozen=True, kw_only=True)
class BatchedReading(Optimization):
    """One call of the dataset for each batch."""

    card: ClassVar[Card] = Card(
        name="batched_reading",
        summary="the samples of a batch are read in one call of the dataset",
        relieves=Bottleneck.INPUT,
        numerics=Numerics.EXACT,
        seam=Seam.DATASET,
        source="PyTorch documentation, torch.utils.data.Dataset, `__getitems__`",
        prior=0.6,
        in_scripts=True,
    )

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Fit where the dataset reads several samples in one call, and no sample is seeded for itself."""
        if facts.job.num_samples is None:
            return Fit.no("an iterable dataset is not read by index")
        if facts.job.is_table and not facts.job.num_workers:
            return Fit.yes(max_gain_frac=facts.form_frac("gather", facts.ceiling_frac("input")), settings=[cls()])
        if not facts.job.has_getitems:
            return Fit.no("the dataset has no `__getitems__(self, indices)` that reads several samples in one call")
        if facts.job.batch_size == 1:
            return Fit.no("a batch is one sample")
        if facts.job.load_is_random:
            return Fit.no(
                "reading a sample may draw random numbers, which are seeded one sample at a time: "
                "say which preparation is deterministic (deterministic_transform)"
            )
        return Fit.yes(max_gain_frac=facts.ceiling_frac("input") * facts.load_frac, settings=[cls()])

    def apply(self, live: LiveJob) -> Undo:
        """Give the pipeline its `load_many`, or have it gather the rows of a table."""
        if live.pipeline.is_table:
            return replace_attribute(live.pipeline, "gather", value=True)
        if live.order is None or not callable(getattr(live.dataset, "__getitems__", None)):
            name = type(live.dataset).__name__
            raise JobError(f"batched_reading needs a dataset with `__getitems__`, not {name}: take it out of the plan.")
        if live.pipeline.load_is_random:
            raise JobError(
                "Reading a sample may draw random numbers, which are seeded one sample at a time: "
                "write deterministic_transform(self, sample), or take batched_reading out of the plan."
            )
        return replace_attribute(live.pipeline, "load_many", _ReadMany(live))

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Samples came in calls of several."""
        calls, samples = (int(trace.counters.get(f"batched_reading_{what}", 0)) for what in ("calls", "samples"))
        return [Check("samples read in one call", samples > calls, f"{samples} samples in {calls} calls")]

    def write_patch(self, script: SourceEdits) -> str:
        """Not written: the dataset gets another method."""
        raise UnwritableError(
            "it goes into the dataset",
            "def __getitems__(self, indices):  # of the dataset: all samples of a batch in one reading",
            "    ...",
        )


class _ReadMany:
    """Reads and prepares a batch's samples; the first batch is compared with single readings."""

    def __init__(self, live: LiveJob) -> None:
        self._job, self._dataset, self._load = live.job, live.dataset, live.pipeline.load
        self._counters = live.counters
        self._checked = False

    def __call__(self, indices: Sequence[int]) -> list[Any]:
        if not indices:
            return []
        samples = self._dataset.__getitems__(list(indices))
        if len(samples) != len(indices):
            name = type(self._dataset).__name__
            raise JobError(f"{name}.__getitems__ gave {len(samples)} samples for {len(indices)} indices: give one for each.")
        loaded = [self._job.deterministic_transform(sample) for sample in samples]
        if not self._checked:
            self._checked = True
            self._check(indices, loaded)
        add_to(self._counters, "batched_reading_calls")
        add_to(self._counters, "batched_reading_samples", len(indices))
        return loaded

    def _check(self, indices: Sequence[int], loaded: list[Any]) -> None:
        for index, sample in zip(indices, loaded, strict=True):
            if content(sample) != content(self._load(index)):
                name = type(self._dataset).__name__
                raise JobError(
                    f"{name}.__getitems__ gives another sample {index} than {name}.__getitem__ does: "
                    f"mend it, or take batched_reading out of the plan."
                )
