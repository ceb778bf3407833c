"""Keep each sample in memory after its deterministic transform.

Relieves:  input: reading, decoding and resizing run once, not in every epoch.
Numerics:  exact: the random transform still runs each time a sample is used.
Limits:    the job must declare its deterministic part. All samples must fit in memory. One process only, because each worker
           would fill its own cache. A script declares nothing, so each epoch first compares up to 688 random cached samples
           with freshly read ones, and at least as many during the epoch. The first difference disables the cache.

If PyTorch's default collate function makes a script's batches, samples are kept as rows of tensors, and a batch is gathered
by one call per tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch.utils.data import default_collate

from hasten.core.card import Bottleneck, Card, Check, Numerics, StepTrace
from hasten.core.facts import Facts
from hasten.core.live import LiveJob
from hasten.core.optimization import Fit, Optimization
from hasten.core.seams import Seam, Undo
from hasten.core.source_edits import SourceEdits
from hasten.optimizations.parts.kept_samples import lines_by_hand, write_kept_samples
from hasten.optimizations.parts.sample_caching import MISSING, hit_check, keep_samples, saved_frac, why_nothing_is_kept
from hasten.optimizations.parts.stacked_samples import StackedSamples

MEMORY_SHARE = 0.25
"""Largest share of the memory that cached samples may use."""


@dataclass(frozen=True, kw_only=True)
class SampleCache(Optimization):
    """An in-memory cache of prepared samples.

    Attributes:
        max_samples: Largest number of samples to keep; 0 keeps all.
    """

    max_samples: int = 0

    card: ClassVar[Card] = Card(
        name="sample_cache",
        summary="cache samples in memory after their deterministic preparation",
        relieves=Bottleneck.INPUT,
        numerics=Numerics.EXACT,
        seam=Seam.DATASET,
        source="tf.data guide, `cache`: caches sit before random augmentation",
        hoped_gain=(
            "about 20 % less time per training step, early in a run "
            "(https://github.com/openvdb/fvdb-reality-capture/pull/320)"
        ),
        prior=0.8,
        claims=frozenset({"sample_cache"}),
        after=("batched_reading",),
        conflicts=("loader_workers",),
        in_scripts=True,
    )

    def __post_init__(self) -> None:
        if self.max_samples < 0:
            raise ValueError(f"max_samples must be 0 (all) or more, not {self.max_samples}")

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Applies if a deterministic part is declared, samples are used repeatedly, and a quarter of memory holds them."""
        job = facts.job
        if (refusal := why_nothing_is_kept(facts)) is not None:
            return refusal
        num_samples, sample_bytes = job.num_samples or 0, facts.sample_bytes or 0
        needed, allowed = sample_bytes * num_samples, int(MEMORY_SHARE * facts.memory_limit_bytes)
        if needed > allowed:
            gib = f"{needed / 2**30:.1f} GiB, more than a quarter of the memory ({allowed / 2**30:.1f} GiB)"
            return Fit.no(f"all samples take {gib}")
        return Fit.yes(max_gain_frac=saved_frac(facts, gathers=job.stacks_samples), settings=[cls()])

    def apply(self, live: LiveJob) -> Undo:
        """Insert the cache into the pipeline's `load`."""
        stacks = live.pipeline.collate is default_collate and not self.max_samples
        memory = _Memory(self.max_samples, StackedSamples(live.num_samples or 0) if stacks else None)
        return keep_samples(live, memory, self.card.name, batch=memory.batch if stacks else None)

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Check that samples came from the cache."""
        return [hit_check(trace, self.card.name)]

    def by_hand(self) -> tuple[str, ...]:
        """Return the dataset that keeps samples, and the line that wraps the script's own."""
        return lines_by_hand(self.max_samples)

    def write_patch(self, script: SourceEdits) -> str:
        """Wrap the dataset of the training loader. In a script, whole samples were shown to repeat."""
        return write_kept_samples(script, self.max_samples)


class _Memory:
    """Samples in the memory of this process."""

    def __init__(self, max_samples: int, stacked: StackedSamples | None) -> None:
        self._max, self._stacked = max_samples, stacked
        self._kept: dict[int, Any] = {}

    def get(self, index: int) -> Any:
        """Return the cached sample, not a copy unless it is a row of tensors, or `MISSING`."""
        if self._stacked is not None and self._stacked.has(index):
            return self._stacked.get(index)
        return self._kept.get(index, MISSING)

    def put(self, index: int, sample: Any) -> None:
        """Cache a sample if there is room."""
        if self._stacked is not None and self._stacked.put(index, sample):
            return
        if not self._max or len(self._kept) < self._max:
            self._kept[index] = sample

    def batch(self, indices: Sequence[int]) -> Any:
        """Return the batch of samples that are rows of tensors, or None."""
        return None if self._stacked is None else self._stacked.batch(indices)

    def __len__(self) -> int:
        return len(self._kept) + (0 if self._stacked is None else len(self._stacked))
