"""Fetch all samples of a batch in one dataset call.

Relieves:  input: the fixed cost of a read (Python calls, seeks, round trips) is paid once per batch.
Numerics:  exact: the same samples in the same order. The first batch is compared with samples that are read one by one.
Limits:    the dataset must have `__getitems__` (torch's batched protocol). In a script, a `TensorDataset` with torch's
           default collate function also works: its rows are gathered at once instead of stacked. Reading must not draw
           random numbers.
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
    """One dataset call per batch."""

    card: ClassVar[Card] = Card(
        name="batched_reading",
        summary="fetch all samples of a batch in one dataset call",
        relieves=Bottleneck.INPUT,
        numerics=Numerics.EXACT,
        seam=Seam.DATASET,
        source="PyTorch documentation, torch.utils.data.Dataset, `__getitems__`",
        prior=0.6,
        in_scripts=True,
    )

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Applies if the dataset can read several samples in one call, and samples need no random seeds of their own."""
        if why := facts.job.why_not_by_index:
            return Fit.no(why)
        if facts.job.is_table and not facts.job.num_workers:
            return Fit.yes(max_gain_frac=facts.form_frac("gather", facts.ceiling_frac("input")), settings=[cls()])
        if facts.job.in_script:
            return Fit.no(
                "PyTorch's loader already calls `__getitems__` if the dataset has it, and the data is not a table in memory"
            )
        if not facts.job.has_getitems:
            return Fit.no("the dataset has no method `__getitems__(self, indices)` to read several samples in one call")
        if facts.job.batch_size == 1:
            return Fit.no("a batch holds a single sample")
        if facts.job.load_is_random:
            return Fit.no(
                "reading a sample may draw random numbers, which are seeded per sample: "
                "declare the deterministic part of the preparation (deterministic_transform)"
            )
        return Fit.yes(max_gain_frac=facts.ceiling_frac("input") * facts.load_frac, settings=[cls()])

    def apply(self, live: LiveJob) -> Undo:
        """Set the pipeline's `load_many`, or make it gather the rows of a table."""
        if live.pipeline.is_table:
            return replace_attribute(live.pipeline, "gather", value=True)
        if live.order is None or not callable(getattr(live.dataset, "__getitems__", None)):
            name = type(live.dataset).__name__
            raise JobError(f"batched_reading needs a dataset with `__getitems__`, not {name}: remove it from the plan.")
        if live.pipeline.load_is_random:
            raise JobError(
                "Reading a sample may draw random numbers, which are seeded per sample: "
                "implement deterministic_transform(self, sample), or remove batched_reading from the plan."
            )
        return replace_attribute(live.pipeline, "load_many", _ReadMany(live))

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Check that dataset calls returned several samples each."""
        calls, samples = (int(trace.counters.get(f"batched_reading_{what}", 0)) for what in ("calls", "samples"))
        return [Check("several samples per dataset call", samples > calls, f"{samples} samples in {calls} calls")]

    def write_patch(self, script: SourceEdits) -> str:
        """Raise UnwritableError: the dataset needs another method."""
        raise UnwritableError(
            "the change belongs in the dataset class",
            "def __getitems__(self, indices):  # return all samples of a batch from one read",
            "    ...",
        )


class _ReadMany:
    """Reads and prepares the samples of a batch. The first batch is compared with samples that are read one by one."""

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
            raise JobError(
                f"{name}.__getitems__ returned {len(samples)} samples for {len(indices)} indices: return one per index."
            )
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
                    f"{name}.__getitems__ and {name}.__getitem__ return different data for sample {index}: "
                    f"fix the dataset, or remove batched_reading from the plan."
                )
