"""Convert the dataset to a store once, after its deterministic preparation, and gather batches from it.

Relieves:  input: a batch is one gather from memory-mapped columns, shared by all workers through the page cache.
Numerics:  exact: the random transform still runs at every visit.
Limits:    samples of plain data; as much disk as they take, and the time to prepare each of them once before training.

The store is one of `hasten.data`: columns for what is alike in all samples, a record for each where they differ. It lies in
a temporary folder and goes with the process, unless HASTEN_CACHE_DIR keeps it from run to run, under a fingerprint of the
job's source and of a few samples. A dataset too large for that is converted by `hasten data convert` beforehand.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from hasten.core.batch import content
from hasten.core.card import Bottleneck, Card, Check, Numerics, StepTrace
from hasten.core.errors import JobError
from hasten.core.facts import Facts
from hasten.core.live import LiveJob
from hasten.core.optimization import Fit, Optimization
from hasten.core.seams import Seam, Undo, add_to, replace_attribute
from hasten.core.seeding import kept_random_state
from hasten.data.rows import RowLayout, UnlikeError
from hasten.data.store.layout import MANIFEST
from hasten.data.store.store import Store
from hasten.data.store.write import StoreWriter
from hasten.optimizations.parts.sample_caching import disk_words, kept_folder, quoted_source, why_nothing_is_kept

MOST_S = 600.0
"""Longest that preparing all samples once may take; above that it is a step of its own, by `hasten data convert`."""
LARGEST_GIB = 64.0
_GIB = 2**30
_ROWS, _LOOKED_AT, _CHECKED = 256, 8, 8


@dataclass(frozen=True, kw_only=True)
class ConvertedDataset(Optimization):
    """The dataset as a store."""

    card: ClassVar[Card] = Card(
        name="converted_dataset",
        summary="the prepared samples converted to a store once, batches gathered from its columns",
        relieves=Bottleneck.INPUT,
        numerics=Numerics.EXACT,
        seam=Seam.DATASET,
        source="Apache Arrow documentation, IPC format; tf.data guide: caches sit before random augmentation",
        prior=0.6,
        setup_s=30.0,
        claims=frozenset({"sample_cache"}),
        after=("batched_reading",),
        script_advice=(
            "which of its preparation is random cannot be seen from outside: convert the data beforehand by "
            "`hasten data convert {source} {source}.store`{need}, and let the dataset read hasten.data.Store"
        ),
    )

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Fit where a deterministic part is declared, samples come back, and preparing each once is soon done."""
        job = facts.job
        if (refusal := why_nothing_is_kept(facts)) is not None:
            return refusal
        num_samples, sample_bytes = job.num_samples or 0, facts.sample_bytes or 0
        source, need = quoted_source(job.data_path), disk_words(sample_bytes * num_samples)
        if sample_bytes * num_samples > LARGEST_GIB * _GIB:
            return Fit.no(
                f"the {num_samples:,} samples are too many for a store of one run: convert them beforehand by `hasten data "
                f"convert {source} {source}.store` ({need} of disk as they are prepared now, by the samples measured), and "
                f"let train_data read hasten.data.Store"
            )
        preparing_s = facts.ceiling_frac("input") * facts.epoch_s
        if preparing_s > MOST_S:
            return Fit.no(
                f"preparing all samples takes about {preparing_s / 60:,.0f} minutes: convert them beforehand by `hasten "
                f"data convert {source} {source}.store` ({need} of disk as they are prepared now, by the samples measured), "
                f"and let train_data read hasten.data.Store"
            )
        return Fit.yes(max_gain_frac=facts.ceiling_frac("input") * facts.load_frac, settings=[cls()])

    def apply(self, live: LiveJob) -> Undo:
        """Make or find the store, and read samples from it."""
        if live.order is None or live.num_samples is None:
            raise JobError("converted_dataset needs a map-style dataset: take it out of the plan.")
        count = live.num_samples
        with kept_random_state():
            looked = [live.pipeline.load(index) for index in _spread(count, _LOOKED_AT)]
        layout = RowLayout.of(looked)
        folder, remove = kept_folder(live, looked, "store")
        try:
            read = _Reader(live, *_converted(live, folder, layout, count))
        except BaseException:
            remove()
            raise
        undos = [replace_attribute(live.pipeline, "load", read), replace_attribute(live.pipeline, "load_many", read.many)]

        def undo() -> None:
            for each in reversed(undos):
                each()
            remove()

        return undo

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Samples really were gathered from the store."""
        gathers, samples = (int(trace.counters.get(f"converted_dataset_{what}", 0)) for what in ("gathers", "samples"))
        return [Check("samples gathered from the store", samples > 0, f"{samples} samples in {gathers} gathers")]


class _Reader:
    """Reads samples from the store; the first are compared with fresh ones. Holds no live job: workers are handed a copy."""

    def __init__(self, live: LiveJob, store: Store, layout: RowLayout) -> None:
        self._load, self._counters = live.pipeline.load, live.counters
        self._store, self._layout = store, layout
        self._to_check = _CHECKED

    def __call__(self, index: int) -> Any:
        return self.many([index])[0]

    def many(self, indices: Sequence[int]) -> list[Any]:
        """Gather the samples of a batch."""
        samples = self._layout.samples(self._store.take(list(indices)), len(indices))
        add_to(self._counters, "converted_dataset_gathers")
        add_to(self._counters, "converted_dataset_samples", len(indices))
        for index, sample in zip(indices, samples, strict=True):
            if self._to_check <= 0:
                break
            self._to_check -= 1
            if content(self._load(index)) != content(sample):
                raise JobError(
                    f"Sample {index} differs from its copy in the store: deterministic_transform gives another result each "
                    f"time. Make it deterministic, or take converted_dataset out of the plan."
                )
        return samples


def _converted(live: LiveJob, folder: Path, layout: RowLayout, count: int) -> tuple[Store, RowLayout]:
    """The store of all samples, and their layout: as another process left it, or made now by one while others wait."""
    records, path = RowLayout(None, ()), folder / "columns"
    with _alone(folder):
        if (folder / "records" / MANIFEST).exists():
            path, layout = folder / "records", records
        elif not (path / MANIFEST).exists() and not _write(live, path, layout, count):
            path, layout = folder / "records", records
            _write(live, path, layout, count)
        store = Store(path)
    if len(store) != count:
        raise JobError(f"the store under {folder} holds {len(store)} samples, and the dataset {count}: remove the folder.")
    return store, layout


def _write(live: LiveJob, path: Path, layout: RowLayout, count: int) -> bool:
    """Write all samples; False, and nothing, where one of them does not suit the layout."""
    try:
        with kept_random_state(), StoreWriter(path, block_rows=_ROWS) as writer:
            for start in range(0, count, _ROWS):
                writer.write(layout.rows(live.pipeline.read(range(start, min(start + _ROWS, count)))))
    except UnlikeError:
        return False
    except TypeError as error:
        raise JobError(
            f"converted_dataset cannot keep these samples: {error}. Make tensors, arrays, numbers or strings of it in "
            f"deterministic_transform, or take converted_dataset out of the plan."
        ) from error
    return True


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    handle = os.open(folder / "converting.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _spread(count: int, wanted: int) -> list[int]:
    """Numbers below `count`, spread evenly."""
    return sorted({round(place * (count - 1) / max(wanted - 1, 1)) for place in range(wanted)})
