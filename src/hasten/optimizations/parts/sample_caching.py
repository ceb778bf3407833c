"""Keep prepared samples: what every sample cache does, wherever it keeps them, and the folder of those on disk.

A cache stands behind the pipeline's `load`, after the deterministic transform and before the random one. The job promises
that this part gives the same each time; the first hits are compared with a fresh reading, so that a broken promise is
found at once and not in the loss.

The folder is a temporary one, or lies in HASTEN_CACHE_DIR and is kept from run to run. Then its name is a fingerprint of the
source of the job and of the dataset, of the dataset's length, and of what a few samples hold, so that a changed job never
reads what an old one wrote.
"""

from __future__ import annotations

import atexit
import hashlib
import inspect
import os
import shlex
import shutil
import tempfile
from collections.abc import Sequence
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
"""The same for the trials of one tuning, which need not make a whole store each; set by those who start them."""
_FORMAT = 1
CHECKED_HITS = 8
MISSING = object()


def why_nothing_is_kept(facts: Facts) -> Fit | None:
    """The refusal of every technique that keeps prepared samples; None where there is something to keep."""
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
    if job.kept_compared_frac >= 1.0:
        return Fit.no(
            f"nobody promises that the samples stay the same, and comparing kept ones with fresh ones at every epoch would "
            f"read as many of the {job.num_samples} as it saves: a job that says which part is deterministic "
            f"(deterministic_transform) needs no comparison"
        )
    return None


def saved_frac(facts: Facts) -> float:
    """The largest share of the time that keeping samples can save: that of reading them, without what is compared."""
    return facts.ceiling_frac("input") * facts.load_frac * (1.0 - facts.job.kept_compared_frac)


def quoted_source(path: str) -> str:
    """The file or folder of a dataset as a shell takes it; the word SOURCE where the dataset names none."""
    return shlex.quote(path.rstrip("/") or path) if path else "SOURCE"


def disk_words(num_bytes: int) -> str:
    """About how much of a disk that is: `about 3.2 GiB`."""
    size = float(max(num_bytes, 0))
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"about {size:.3g} {unit}"
        size /= 1024
    return f"about {size:,.1f} GiB"


class Shelf(Protocol):
    """Where samples are kept, under their index."""

    def get(self, index: int) -> Any:
        """The kept sample, or `MISSING`."""
        ...

    def put(self, index: int, sample: Any) -> None:
        """Keep a sample, where there is room."""
        ...

    def __len__(self) -> int: ...


def keep_samples(live: LiveJob, shelf: Shelf, name: str) -> Undo:
    """Put a cache behind the pipeline's reading of samples.

    Args:
        live: The live job; it counts `{name}_hits`, `{name}_misses` and `{name}_kept`.
        shelf: Where the samples are kept.
        name: The optimization's name.

    Raises:
        JobError: The dataset has no index to keep samples under.
    """
    if live.order is None:
        raise JobError(f"{name} needs a map-style dataset: take it out of the plan.")
    pipeline = live.pipeline
    kept = _KeptLoad(live, shelf, name)
    undos = [replace_attribute(pipeline, "load", kept), replace_attribute(pipeline, "kept", shelf.get)]
    if pipeline.load_many is not None:
        undos.append(replace_attribute(pipeline, "load_many", kept.many))
    undos.append(append_to(live.prime, kept.fill))

    def undo() -> None:
        for undo_one in reversed(undos):
            undo_one()

    return undo


def hit_check(trace: StepTrace, name: str) -> Check:
    """The proof that samples came from the cache, with its hit rate in the traced steps."""
    hits, misses, kept = (int(trace.counters.get(f"{name}_{what}", 0)) for what in ("hits", "misses", "kept"))
    rate = f"{hits / (hits + misses):.0%}" if hits else "0%"
    return Check("samples taken from the cache", hits > 0, f"{hits} hits of {hits + misses} readings ({rate}), {kept} kept")


class _KeptLoad:
    """`load` with a memory. Holds the counters and not the live job: worker processes are handed a copy of it."""

    def __init__(self, live: LiveJob, shelf: Shelf, name: str) -> None:
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
        """Take what is kept, and read the rest in one call."""
        found = {index: self._taken(index) for index in indices}
        missing = [index for index, sample in found.items() if sample is MISSING]
        if missing and self._load_many is not None:
            for index, sample in zip(missing, self._load_many(missing), strict=True):
                self._shelf.put(index, sample)
                found[index] = sample
        return [found[index] for index in indices]

    def fill(self, indices: Sequence[int]) -> None:
        """Load what is not there yet."""
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
                f"Sample {index} differs from its kept copy: either deterministic_transform gives another result each time, "
                f"or random_transform or collate changes its argument in place. Copy it there first, "
                f"or take {self._name} out of the plan."
            )


def kept_folder(live: LiveJob, few: list[Any], kind: str) -> tuple[Path, Undo]:
    """A folder for a job's samples, and how to remove it: at once when undone, and at the latest when this process ends.

    Args:
        live: The live job.
        few: A few of its samples, freshly prepared: they tell of changes that the source of the job does not.
        kind: Begins its name: `samples`, `store`.
    """
    kept = os.environ.get(FOLDER_VARIABLE) or os.environ.get(TRIALS_VARIABLE if kind == "store" else "")
    if kept and (name := fingerprint(live, few)):
        folder = Path(kept).expanduser() / f"{kind}-{name}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder, lambda: None
    folder, owner = Path(tempfile.mkdtemp(prefix=f"hasten-{kind}-")), os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # not when a fork of it ends
            shutil.rmtree(folder, ignore_errors=True)
            atexit.unregister(remove)

    atexit.register(remove)
    return folder, remove


def fingerprint(live: LiveJob, few: list[Any]) -> str:
    """Name what a kept sample depends on, as 24 hexadecimal digits; empty where the source cannot be read.

    Args:
        live: The live job.
        few: A few of its samples, freshly prepared: they tell of changes that the source of the job does not.
    """
    kinds = [kind for owner in (live.job, live.dataset) for kind in type(owner).__mro__]
    files = {}
    for kind in kinds:
        if kind.__module__.partition(".")[0] in ("builtins", "abc", "typing", "torch"):
            continue
        try:
            files[f"{kind.__module__}.{kind.__qualname__}"] = Path(inspect.getfile(kind)).read_bytes()
        except (TypeError, OSError):  # written at a prompt: nothing tells one version of it from another
            return ""
    digest = hashlib.sha256(repr((_FORMAT, live.num_samples, torch.__version__, np.__version__)).encode())
    for name in sorted(files):
        digest.update(name.encode() + b"\0" + hashlib.sha256(files[name]).digest())
    digest.update(repr([content(sample) for sample in few]).encode())
    return digest.hexdigest()[:24]
