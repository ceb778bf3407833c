"""Keep each sample in memory after its deterministic transform.

Relieves:  input: reading, decoding and resizing are done once, not at every epoch.
Numerics:  exact: the random transform still runs at every visit.
Limits:    the job must say which part is deterministic; the samples must fit; one process (each worker would fill its own).
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from upshift.core.batch import iter_tensors, map_tensors
from upshift.core.errors import JobError
from upshift.core.facts import Facts
from upshift.core.live import LiveJob, Seam, Undo, replace_attribute
from upshift.core.optimization import Bottleneck, Card, Check, Fit, Numerics, Optimization, StepTrace

MEMORY_SHARE = 0.25
CHECKED_HITS = 8
_NOTHING = torch.zeros(0)


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
        prior=0.8,
        claims=frozenset({"sample_cache"}),
        conflicts=("loader_workers",),
    )

    def __post_init__(self) -> None:
        if self.max_samples < 0:
            raise ValueError(f"max_samples must be 0 (all) or more, not {self.max_samples}")

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Fit where a deterministic part is declared, samples come back, and all of them fit in a quarter of the memory."""
        job = facts.job
        if not job.has_deterministic_transform:
            return Fit.no("the job does not say what may be kept: write deterministic_transform(self, sample)")
        if job.num_samples is None:
            return Fit.no("an iterable dataset has no index to keep samples under")
        per_epoch = job.updates_per_epoch or -(-job.num_samples // (job.accumulation * job.batch_size))
        if (job.planned_updates or 0) <= per_epoch:
            return Fit.no(f"each of the {job.num_samples} samples is visited at most once in this run")
        if facts.sample_bytes is None:
            return Fit.no("the size of a prepared sample could not be measured")
        needed, allowed = facts.sample_bytes * job.num_samples, int(MEMORY_SHARE * facts.memory_limit_bytes)
        if needed > allowed:
            gib = f"{needed / 2**30:.1f} GiB, more than a quarter of the memory ({allowed / 2**30:.1f} GiB)"
            return Fit.no(f"all samples take {gib}")
        return Fit.yes(max_gain_frac=facts.ceiling_frac("input") * facts.load_frac, settings=[cls()])

    def apply(self, live: LiveJob) -> Undo:
        """Put the cache behind the pipeline's `load`."""
        if live.order is None:
            raise JobError("sample_cache needs a map-style dataset: take it out of the plan.")
        cache = _Cache(live, self.max_samples)
        undo_load = replace_attribute(live.pipeline, "load", cache)
        live.prime.append(cache.fill)

        def undo() -> None:
            live.prime.remove(cache.fill)
            undo_load()

        return undo

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Samples really came from the cache."""
        hits, kept = (int(trace.counters.get(name, 0)) for name in ("sample_cache_hits", "sample_cache_kept"))
        return [Check("samples taken from the cache", hits > 0, f"{hits} hits, {kept} kept")]


class _Cache:
    """`load` with a memory; the first hits are compared with a fresh reading, so a broken promise is found at once."""

    def __init__(self, live: LiveJob, max_samples: int) -> None:
        self._live, self._load, self._max = live, live.pipeline.load, max_samples
        self._kept: dict[int, Any] = {}
        self._to_check = CHECKED_HITS

    def __call__(self, index: int) -> Any:
        if index in self._kept:
            self._live.count("sample_cache_hits")
            self._live.counters["sample_cache_kept"] = len(self._kept)
            sample = self._kept[index]
            if self._to_check:
                self._to_check -= 1
                self._check(index, sample)
            return sample
        sample = self._load(index)
        if not self._max or len(self._kept) < self._max:
            self._kept[index] = sample
        return sample

    def fill(self, indices: Sequence[int]) -> None:
        """Load what is not there yet."""
        for index in indices:
            if index not in self._kept:
                self(index)

    def _check(self, index: int, kept: Any) -> None:
        if _content(self._load(index)) != _content(kept):
            raise JobError(
                f"Sample {index} differs from its kept copy: either deterministic_transform gives another result each time, "
                f"or random_transform or collate changes its argument in place. Copy it there first, "
                f"or take sample_cache out of the plan."
            )


def _content(sample: Any) -> tuple[list[tuple[str, tuple[int, ...], bytes]], bytes]:
    """What a sample holds, by value: a pickled tensor would drag its whole storage along, with its address."""
    tensors = [tensor.detach().cpu().contiguous() for tensor in iter_tensors(sample)]
    values = [(str(t.dtype), tuple(t.shape), t.reshape(-1).view(torch.uint8).numpy().tobytes()) for t in tensors]
    return values, pickle.dumps(map_tensors(sample, lambda _: _NOTHING))
