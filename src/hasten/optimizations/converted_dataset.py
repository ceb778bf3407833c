"""Convert the dataset to a store once, after its deterministic preparation, and gather batches from the store.

Relieves:  input: a batch is one gather from memory-mapped columns, which all workers share through the page cache.
Numerics:  exact: the random transform still runs each time a sample is used.
Limits:    samples of plain data. It needs disk space for all of them, and time to prepare each once before training.

The store is a `hasten.data` store: columns if all samples have the same layout, otherwise one record per sample. It is in a
temporary folder that is removed when the process ends. With HASTEN_CACHE_DIR set it is kept between runs, under a
fingerprint of the job's source code and of a few samples. Convert larger datasets beforehand, with `hasten data convert`.
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
"""Longest time for preparing all samples, in seconds. Above it, `hasten data convert` must be run beforehand."""
LARGEST_GIB = 64.0
"""Largest store that is created for one run, in GiB."""
_GIB = 2**30
_ROWS, _EXAMINED, _CHECKED = 256, 8, 8


@dataclass(frozen=True, kw_only=True)
class ConvertedDataset(Optimization):
    """The dataset as a store."""

    card: ClassVar[Card] = Card(
        name="converted_dataset",
        summary="convert the prepared samples to a store once, and gather batches from its columns",
        relieves=Bottleneck.INPUT,
        numerics=Numerics.EXACT,
        seam=Seam.DATASET,
        source="Apache Arrow documentation, IPC format; tf.data guide: caches sit before random augmentation",
        prior=0.6,
        setup_s=30.0,
        claims=frozenset({"sample_cache"}),
        after=("batched_reading",),
        script_advice=(
            "it is unknown which part of the script's preparation is random: convert the data beforehand with "
            "`hasten data convert {source} {source}.store`{need}, and let the dataset read hasten.data.Store"
        ),
    )

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Applies if a deterministic part is declared, samples are used repeatedly, and preparing all of them is quick."""
        job = facts.job
        if (refusal := why_nothing_is_kept(facts)) is not None:
            return refusal
        num_samples, sample_bytes = job.num_samples or 0, facts.sample_bytes or 0
        source, need = quoted_source(job.data_path), disk_words(sample_bytes * num_samples)
        if sample_bytes * num_samples > LARGEST_GIB * _GIB:
            return Fit.no(
                f"the {num_samples:,} samples are too large to convert for one run: convert them beforehand with `hasten "
                f"data convert {source} {source}.store` ({need} of disk, estimated from the samples measured), and let "
                f"train_data read hasten.data.Store"
            )
        preparing_s = facts.ceiling_frac("input") * facts.epoch_s
        if preparing_s > MOST_S:
            return Fit.no(
                f"preparing all samples takes about {preparing_s / 60:,.0f} minutes: convert them beforehand with `hasten "
                f"data convert {source} {source}.store` ({need} of disk, estimated from the samples measured), and let "
                f"train_data read hasten.data.Store"
            )
        return Fit.yes(max_gain_frac=facts.ceiling_frac("input") * facts.load_frac, settings=[cls()])

    def apply(self, live: LiveJob) -> Undo:
        """Create or reuse the store, and read samples from it."""
        if live.order is None or live.num_samples is None:
            raise JobError("converted_dataset needs a map-style dataset: remove it from the plan.")
        count = live.num_samples
        with kept_random_state():
            examined = [live.pipeline.load(index) for index in _spread(count, _EXAMINED)]
        layout = RowLayout.of(examined)
        folder, remove = kept_folder(live, examined, "store")
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
        """Check that samples were gathered from the store."""
        gathers, samples = (int(trace.counters.get(f"converted_dataset_{what}", 0)) for what in ("gathers", "samples"))
        return [Check("samples gathered from the store", samples > 0, f"{samples} samples in {gathers} gathers")]


class _Reader:
    """Reads samples from the store, and compares the first few with freshly prepared ones.

    It has no reference to the live job, because it is copied to worker processes.
    """

    def __init__(self, live: LiveJob, store: Store, layout: RowLayout) -> None:
        self._load, self._counters = live.pipeline.load, live.counters
        self._store, self._layout = store, layout
        self._to_check = _CHECKED

    def __call__(self, index: int) -> Any:
        return self.many([index])[0]

    def many(self, indices: Sequence[int]) -> list[Any]:
        """Gather the samples of a batch from the store."""
        samples = self._layout.samples(self._store.take(list(indices)), len(indices))
        add_to(self._counters, "converted_dataset_gathers")
        add_to(self._counters, "converted_dataset_samples", len(indices))
        for index, sample in zip(indices, samples, strict=True):
            if self._to_check <= 0:
                break
            self._to_check -= 1
            if content(self._load(index)) != content(sample):
                raise JobError(
                    f"Sample {index} differs from its copy in the store: deterministic_transform is not deterministic. "
                    f"Fix it, or remove converted_dataset from the plan."
                )
        return samples


def _converted(live: LiveJob, folder: Path, layout: RowLayout, count: int) -> tuple[Store, RowLayout]:
    """Return the store of all samples and their layout. One process creates the store while others wait for it."""
    records, path = RowLayout(None, ()), folder / "columns"
    with _alone(folder):
        if (folder / "records" / MANIFEST).exists():
            path, layout = folder / "records", records
        elif not (path / MANIFEST).exists() and not _write(live, path, layout, count):
            path, layout = folder / "records", records
            _write(live, path, layout, count)
        store = Store(path)
    if len(store) != count:
        raise JobError(
            f"The store in {folder} has {len(store)} samples, but the dataset has {count}: delete the folder and run again."
        )
    return store, layout


def _write(live: LiveJob, path: Path, layout: RowLayout, count: int) -> bool:
    """Write all samples and return True. If a sample does not fit the layout, write nothing and return False."""
    try:
        with kept_random_state(), StoreWriter(path, block_rows=_ROWS) as writer:
            for start in range(0, count, _ROWS):
                writer.write(layout.rows(live.pipeline.read(range(start, min(start + _ROWS, count)))))
    except UnlikeError:
        return False
    except TypeError as error:
        raise JobError(
            f"converted_dataset cannot store these samples: {error}. Convert this value to tensors, arrays, numbers or "
            f"strings in deterministic_transform, or remove converted_dataset from the plan."
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
    """Return at most `wanted` numbers from 0 to `count - 1`, evenly spaced."""
    return sorted({round(place * (count - 1) / max(wanted - 1, 1)) for place in range(wanted)})
