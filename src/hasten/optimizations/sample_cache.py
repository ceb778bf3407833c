"""Keep each sample in memory after its deterministic transform.

Relieves:  input: reading, decoding and resizing are done once, not at every epoch.
Numerics:  exact: the random transform still runs at every visit.
Limits:    the job must say which part is deterministic; the samples must fit; one process (each worker would fill its own).
           A script says nothing: each epoch begins by comparing 688 random kept samples with fresh ones, and as many are
           compared as they are given; the first that differs ends the caching.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from hasten.core.card import Bottleneck, Card, Check, Numerics, StepTrace
from hasten.core.facts import Facts
from hasten.core.live import LiveJob
from hasten.core.optimization import Fit, Optimization
from hasten.core.seams import Seam, Undo
from hasten.core.source_edits import SourceEdits, UnwritableError
from hasten.optimizations.parts.sample_caching import MISSING, hit_check, keep_samples, saved_frac, why_nothing_is_kept

MEMORY_SHARE = 0.25


@dataclass(frozen=True, kw_only=True)
class SampleCache(Optimization):
    """An in-memory cache of prepared samples.

    Attributes:
        max_samples: Keep at most so many; 0 keeps all.
    """

    max_samples: int = 0

    card: ClassVar[Card] = Card(
        name="sample_cache",
        summary="samples kept in memory after their deterministic preparation",
        relieves=Bottleneck.INPUT,
        numerics=Numerics.EXACT,
        seam=Seam.DATASET,
        source="tf.data guide, `cache`: caches sit before random augmentation",
        hoped_gain=(
            "around 20 % off the time of a training step, early in a run "
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
        """Fit where a deterministic part is declared, samples come back, and all of them fit in a quarter of the memory."""
        job = facts.job
        if (refusal := why_nothing_is_kept(facts)) is not None:
            return refusal
        num_samples, sample_bytes = job.num_samples or 0, facts.sample_bytes or 0
        needed, allowed = sample_bytes * num_samples, int(MEMORY_SHARE * facts.memory_limit_bytes)
        if needed > allowed:
            gib = f"{needed / 2**30:.1f} GiB, more than a quarter of the memory ({allowed / 2**30:.1f} GiB)"
            return Fit.no(f"all samples take {gib}")
        return Fit.yes(max_gain_frac=saved_frac(facts), settings=[cls()])

    def apply(self, live: LiveJob) -> Undo:
        """Put the cache behind the pipeline's `load`."""
        return keep_samples(live, _Memory(self.max_samples), self.card.name)

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Samples really came from the cache."""
        return [hit_check(trace, self.card.name)]

    def write_patch(self, script: SourceEdits) -> str:
        """Not written: only the user knows which part of a sample never changes."""
        room = f" and len(self.cached) < {self.max_samples}" if self.max_samples else ""
        found = "self.cached.get(index) or self.dataset[index]" if room else "self.cached[index]"
        raise UnwritableError(
            "which part of a sample is the same at every visit is for you to say",
            "class Cached(torch.utils.data.Dataset):  # around the dataset, below anything random",
            "    def __init__(self, dataset):",
            "        self.dataset, self.cached = dataset, {}",
            "    def __len__(self):",
            "        return len(self.dataset)",
            "    def __getitem__(self, index):",
            f"        if index not in self.cached{room}:",
            "            self.cached[index] = self.dataset[index]",
            f"        return {found}",
        )


class _Memory:
    """Samples in the memory of this process."""

    def __init__(self, max_samples: int) -> None:
        self._max = max_samples
        self._kept: dict[int, Any] = {}

    def get(self, index: int) -> Any:
        """The kept sample itself, or `MISSING`."""
        return self._kept.get(index, MISSING)

    def put(self, index: int, sample: Any) -> None:
        """Keep a sample, where there is room."""
        if not self._max or len(self._kept) < self._max:
            self._kept[index] = sample

    def __len__(self) -> int:
        return len(self._kept)
