"""Shared code of the sample caches, and the folder of those that are on disk.

A cache is part of the pipeline's `load`, after the deterministic transform and before the random one. The job declares that
this part always returns the same sample. The first hits are compared with freshly prepared samples, so that a wrong
declaration is detected at once and not in the loss.

The folder is temporary, or is kept between runs in HASTEN_CACHE_DIR. Then its name is a fingerprint of the source code of
the job and the dataset, of the length of the dataset, and of a few samples, so that a changed job never reads old samples.
"""

from __future__ import annotations

import atexit
import hashlib
import inspect
import os
import shlex
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from hasten.core.batch import content
from hasten.core.card import Check, StepTrace
from hasten.core.errors import JobError
from hasten.core.facts import Facts
from hasten.core.live import LiveJob
from hasten.core.optimization import Fit
from hasten.core.seams import Undo, add_to, append_to, replace_attribute

FOLDER_VARIABLE = "HASTEN_CACHE_DIR"
TRIALS_VARIABLE = "HASTEN_TRIAL_STORES"
"""The same for the trials of a tuning, so that they share one store. The parent process sets it."""
_FORMAT = 1
CHECKED_HITS = 8
MISSING = object()


def why_nothing_is_kept(facts: Facts) -> Fit | None:
    """Return the refusal of every technique that caches prepared samples, or None if samples can be cached."""
    job = facts.job
    if not job.has_deterministic_transform and job.in_script:
        return Fit.no(f"samples may not be cached: {job.samples_vary}")
    if not job.has_deterministic_transform:
        return Fit.no(
            "the job declares no deterministic part that can be cached: implement deterministic_transform(self, sample)"
        )
    if job.is_table and job.in_script:
        return Fit.no("the samples are rows of tensors that are in memory already")
    if job.num_samples is None:
        return Fit.no("samples of an iterable dataset have no index to cache them by")
    per_epoch = job.updates_per_epoch or -(-job.num_samples // (job.accumulation * job.batch_size))
    if (job.planned_updates or 0) <= per_epoch:
        return Fit.no(f"each of the {job.num_samples} samples is used at most once in this run")
    if facts.sample_bytes is None:
        return Fit.no("the size of a prepared sample could not be measured")
    if job.kept_compared_frac >= 1.0:
        return Fit.no(
            f"the samples are not declared deterministic, and comparing cached samples with fresh ones in every epoch would "
            f"read as many of the {job.num_samples} samples as it saves"
        )
    return None


def saved_frac(facts: Facts, *, gathers: bool = False) -> float:
    """Return the largest share of the time that a cache can save: the time to read the samples that are not compared.

    Args:
        facts: The facts.
        gathers: Whether the cache also makes the batches.
    """
    share = 1.0 if gathers else facts.load_frac
    return facts.ceiling_frac("input") * share * (1.0 - facts.job.kept_compared_frac)


def quoted_source(path: str) -> str:
    """Return the path of a dataset quoted for the shell, or the word SOURCE if the dataset has no path."""
    return shlex.quote(path.rstrip("/") or path) if path else "SOURCE"


def disk_words(num_bytes: int) -> str:
    """Return an approximate size in words: `about 3.2 GiB`."""
    size = float(max(num_bytes, 0))
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"about {size:.3g} {unit}"
        size /= 1024
    return f"about {size:,.1f} GiB"


class Shelf(Protocol):
    """Storage for samples by index."""

    def get(self, index: int) -> Any:
        """Return the stored sample, or `MISSING`."""
        ...

    def put(self, index: int, sample: Any) -> None:
        """Store a sample if there is room."""
        ...

    def __len__(self) -> int: ...


def keep_samples(live: LiveJob, shelf: Shelf, name: str, *, batch: Callable[[Sequence[int]], Any] | None = None) -> Undo:
    """Insert a cache into the pipeline that reads samples.

    Args:
        live: The live job. It counts `{name}_hits`, `{name}_misses` and `{name}_kept`.
        shelf: Storage for the samples.
        name: Name of the optimization.
        batch: Returns the batch of these samples, or None; None if the storage cannot make batches.

    Raises:
        JobError: The dataset is not map-style.
    """
    if live.order is None:
        raise JobError(f"{name} needs a map-style dataset: remove it from the plan.")
    pipeline = live.pipeline
    kept = _KeptLoad(live, shelf, name, batch)
    undos = [replace_attribute(pipeline, "load", kept), replace_attribute(pipeline, "kept", shelf.get)]
    if pipeline.load_many is not None:
        undos.append(replace_attribute(pipeline, "load_many", kept.many))
    if batch is not None:
        undos.append(replace_attribute(pipeline, "kept_batch", kept.batch))
    undos.append(append_to(live.prime, kept.fill))

    def undo() -> None:
        for undo_one in reversed(undos):
            undo_one()

    return undo


def hit_check(trace: StepTrace, name: str) -> Check:
    """Check that samples came from the cache, and show its hit rate in the traced steps."""
    hits, misses, kept = (int(trace.counters.get(f"{name}_{what}", 0)) for what in ("hits", "misses", "kept"))
    rate = f"{hits / (hits + misses):.0%}" if hits else "0%"
    return Check("samples from the cache", hits > 0, f"{hits} hits in {hits + misses} reads ({rate}), {kept} samples cached")


class _KeptLoad:
    """`load` with a cache. It has no reference to the live job, only to its counters, because it is copied to workers."""

    def __init__(self, live: LiveJob, shelf: Shelf, name: str, batch: Callable[[Sequence[int]], Any] | None) -> None:
        self._batch = batch
        self._load, self._load_many = live.pipeline.load, live.pipeline.load_many
        self._counters, self._shelf, self._name = live.counters, shelf, name
        self._to_check = CHECKED_HITS

    def __call__(self, index: int) -> Any:
        sample = self._taken(index)
        if sample is MISSING:
            sample = self._load(index)
            self._shelf.put(index, sample)
        return sample

    def many(self, indices: Sequence[int]) -> list[Any]:
        """Take cached samples, and read the others in one call."""
        samples = {index: self._taken(index) for index in indices}
        missing = [index for index, sample in samples.items() if sample is MISSING]
        if missing and self._load_many is not None:
            for index, sample in zip(missing, self._load_many(missing), strict=True):
                self._shelf.put(index, sample)
                samples[index] = sample
        return [samples[index] for index in indices]

    def batch(self, indices: Sequence[int]) -> Any:
        """Return the batch of these samples, or None if not all of them are cached."""
        batch = None if self._batch is None or self._to_check > 0 else self._batch(indices)
        if batch is not None:
            add_to(self._counters, f"{self._name}_hits", len(indices))
            self._counters[f"{self._name}_kept"] = len(self._shelf)
        return batch

    def fill(self, indices: Sequence[int]) -> None:
        """Load the samples that are not cached yet."""
        for index in indices:
            if self._shelf.get(index) is MISSING:
                self(index)

    def _taken(self, index: int) -> Any:
        sample = self._shelf.get(index)
        if sample is MISSING:
            add_to(self._counters, f"{self._name}_misses")
            return MISSING
        add_to(self._counters, f"{self._name}_hits")
        self._counters[f"{self._name}_kept"] = len(self._shelf)
        if self._to_check > 0:
            self._to_check -= 1
            self._check(index, sample)
        return sample

    def _check(self, index: int, kept: Any) -> None:
        if content(self._load(index)) != content(kept):
            raise JobError(
                f"Sample {index} differs from its cached copy: either deterministic_transform is not deterministic, or "
                f"random_transform or collate modifies its argument in place. Copy the argument there, or remove "
                f"{self._name} from the plan."
            )


def kept_folder(live: LiveJob, few: list[Any], kind: str) -> tuple[Path, Undo]:
    """Return a folder for a job's samples, and a function that removes it. It is also removed when this process ends.

    Args:
        live: The live job.
        few: A few freshly prepared samples, which reveal changes that are not in the source code of the job.
        kind: Prefix of the folder's name: `samples` or `store`.
    """
    kept = os.environ.get(FOLDER_VARIABLE) or os.environ.get(TRIALS_VARIABLE if kind == "store" else "")
    if kept and (name := fingerprint(live, few)):
        folder = Path(kept).expanduser() / f"{kind}-{name}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder, lambda: None
    folder, owner = Path(tempfile.mkdtemp(prefix=f"hasten-{kind}-")), os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # not when a forked process ends
            shutil.rmtree(folder, ignore_errors=True)
            atexit.unregister(remove)

    atexit.register(remove)
    return folder, remove


def fingerprint(live: LiveJob, few: list[Any]) -> str:
    """Return a fingerprint of everything that a cached sample depends on, or an empty text if a source cannot be read.

    Args:
        live: The live job.
        few: A few freshly prepared samples, which reveal changes that are not in the source code of the job.

    Returns:
        24 hexadecimal digits.
    """
    kinds = [kind for owner in (live.job, live.dataset) for kind in type(owner).__mro__]
    files = {}
    for kind in kinds:
        if kind.__module__.partition(".")[0] in ("builtins", "abc", "typing", "torch"):
            continue
        try:
            files[f"{kind.__module__}.{kind.__qualname__}"] = Path(inspect.getfile(kind)).read_bytes()
        except (TypeError, OSError):  # defined interactively: its versions cannot be distinguished
            return ""
    digest = hashlib.sha256(repr((_FORMAT, live.num_samples, torch.__version__, np.__version__)).encode())
    for name in sorted(files):
        digest.update(name.encode() + b"\0" + hashlib.sha256(files[name]).digest())
    digest.update(repr([content(sample) for sample in few]).encode())
    return digest.hexdigest()[:24]
