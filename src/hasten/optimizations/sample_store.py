"""Keep each sample on disk after its deterministic transform, shared by all worker processes.

Relieves:  input: reading, decoding and resizing run once, not in every epoch and not once per worker.
Numerics:  exact: the random transform still runs each time a sample is used.
Limits:    samples of tensors, arrays, numbers and strings in dicts, lists and tuples. It needs up to `max_gib` of disk. In a
           script, stored samples are compared with freshly read ones, as in `sample_cache`.

The store consists of two files. `data` contains the records, which are appended under a file lock, so that several
processes can fill it. `index` contains 8-byte numbers: the end of the records in `data`, the number of samples, and the
position of each sample's record (0 if it has none). A complete record is published by a single aligned write to the index.
A reader verifies its number, length and checksum. Both files are memory-mapped, so the page cache of the operating system
is the only copy in memory. The folder is temporary and removed at the end of the run. Set HASTEN_CACHE_DIR to keep it
between runs. Then its name is a fingerprint of the source code of the job and the dataset, of the length of the dataset,
and of a few samples, so that a changed job never reads old samples.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import shutil
import struct
import sys
import threading
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from hasten.core.card import Bottleneck, Card, Check, Numerics, StepTrace
from hasten.core.errors import JobError
from hasten.core.facts import Facts
from hasten.core.files import write_at
from hasten.core.live import LiveJob
from hasten.core.optimization import Fit, Optimization
from hasten.core.records import ALIGNMENT, decode, encode
from hasten.core.seams import Seam, Undo
from hasten.core.seeding import kept_random_state
from hasten.optimizations.parts.sample_caching import (
    MISSING,
    hit_check,
    keep_samples,
    kept_folder,
    saved_frac,
    why_nothing_is_kept,
)

LARGEST_GIB = 64.0
"""Largest store that is offered, in GiB."""
SPARE = 1.25
"""Size of the records relative to the pickled samples: it includes alignment and headers."""
FREE_DISK_SHARE = 0.5
"""Largest share of the free disk space that a store may use."""
_GIB = 2**30
_HEAD = struct.Struct("<4sIQQ")
"""Header of a record: a mark, the checksum of the payload, the index of the sample, the length of the payload in bytes."""
_MARK = b"ups1"
_END, _COUNT, _FIRST = 0, 1, 2
"""Positions in the index: the end of the records in `data`, the number of samples, and the first entry of a sample."""


@dataclass(frozen=True, kw_only=True)
class SampleStore(Optimization):
    """A cache of prepared samples on disk.

    Attributes:
        max_gib: Largest size in GiB, above 0. It never takes more than half of the free disk space.
    """

    max_gib: float = 8.0

    card: ClassVar[Card] = Card(
        name="sample_store",
        summary="cache samples on disk after their deterministic preparation, shared by all workers",
        relieves=Bottleneck.INPUT,
        numerics=Numerics.EXACT,
        seam=Seam.DATASET,
        source="tf.data guide, `cache` with a file name: caches sit before random augmentation",
        prior=0.6,
        claims=frozenset({"sample_cache"}),
        after=("batched_reading",),
        in_scripts=True,
    )

    def __post_init__(self) -> None:
        if not self.max_gib > 0:
            raise ValueError(f"max_gib must be above 0, not {self.max_gib}")

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Applies if a deterministic part is declared and samples are used repeatedly. It may hold only some of them."""
        job = facts.job
        if (refusal := why_nothing_is_kept(facts)) is not None:
            return refusal
        num_samples, sample_bytes = job.num_samples or 0, facts.sample_bytes or 0
        needed_gib = SPARE * sample_bytes * num_samples / _GIB
        max_gib = min(max(round(needed_gib + 0.05, 1), 0.1), LARGEST_GIB)
        share = min(max_gib / needed_gib, 1.0) if needed_gib else 1.0
        return Fit.yes(max_gain_frac=saved_frac(facts) * share, settings=[cls(max_gib=max_gib)])

    def apply(self, live: LiveJob) -> Undo:
        """Create or reuse the store, and insert it into the pipeline's `load`."""
        if live.order is None or live.num_samples is None:
            raise JobError("sample_store needs a map-style dataset: remove it from the plan.")
        with kept_random_state():
            few = [live.pipeline.load(index) for index in sorted({0, live.num_samples // 2, live.num_samples - 1})]
        try:
            encode(few[0])
        except TypeError as error:
            raise JobError(
                f"sample_store cannot store these samples: {error}. Convert this value to tensors, arrays, numbers or "
                f"strings in deterministic_transform, or remove sample_store from the plan."
            ) from error
        folder, remove = kept_folder(live, few, "samples")
        free = shutil.disk_usage(folder).free
        store = Store(folder, live.num_samples, int(min(self.max_gib * _GIB, FREE_DISK_SHARE * free)))
        undo_keeping = keep_samples(live, store, self.card.name)

        def undo() -> None:
            undo_keeping()
            store.close()
            remove()

        return undo

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Check that samples came from the store."""
        return [hit_check(trace, self.card.name)]


class Store:
    """Samples on disk, which any number of threads and processes can read and write.

    Args:
        folder: Folder of the two files.
        num_samples: Number of samples in the dataset.
        max_bytes: Largest size of `data` in bytes.
    """

    def __init__(self, folder: Path, num_samples: int, max_bytes: int) -> None:
        self._folder, self._num, self._max = folder, num_samples, max_bytes
        self._open: _OpenFiles | None = None
        self._files()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_open": None}

    def __len__(self) -> int:
        return self._files().count()

    def get(self, index: int) -> Any:
        """Return a new copy of the stored sample, or `MISSING`."""
        record = self._files().read(index)
        return MISSING if record is None else decode(record)

    def put(self, index: int, sample: Any) -> None:
        """Store a sample of plain data if there is room."""
        try:
            record = encode(sample)
        except TypeError:  # the sample is prepared each time it is used, which is correct but slow
            return
        self._files().write(index, record, self._max)

    def close(self) -> None:
        """Close the files of this process."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def _files(self) -> _OpenFiles:
        """Return the files, opened once per process: a file lock shared with a forked parent would not exclude it."""
        if self._open is None or self._open.process != os.getpid():
            self._open = _OpenFiles(self._folder, self._num)
        return self._open


class _OpenFiles:
    """The two open files of one process."""

    def __init__(self, folder: Path, num_samples: int) -> None:
        self.process = os.getpid()
        self._guard = threading.Lock()
        self._data, self._index = (
            os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600) for name in ("data", "index")
        )
        size = 8 * (_FIRST + num_samples)
        if os.fstat(self._index).st_size < size:
            os.ftruncate(self._index, size)  # fills with zeros, so it does not matter which process comes first
        self._index_map = mmap.mmap(self._index, size, prot=mmap.PROT_READ)
        self._numbers = np.frombuffer(self._index_map, dtype=np.int64)
        self._data_map: mmap.mmap | None = None
        self._checked: set[int] = set()
        self._full = False

    def count(self) -> int:
        return int(self._numbers[_COUNT])

    def read(self, index: int) -> bytearray | None:
        if not self._numbers[_FIRST + index]:
            return None
        with self._guard:
            return self._record(index)

    def write(self, index: int, record: bytes, max_bytes: int) -> None:
        whole = _HEAD.pack(_MARK, zlib.crc32(record), index, len(record)) + record
        whole += b"\0" * (-len(whole) % ALIGNMENT)
        with self._guard:
            if self._full:
                return
            fcntl.flock(self._data, fcntl.LOCK_EX)
            try:
                self._append(index, whole, max_bytes)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                self._full = True  # stored samples stay usable, and the others are prepared each time
            finally:
                fcntl.flock(self._data, fcntl.LOCK_UN)

    def _append(self, index: int, whole: bytes, max_bytes: int) -> None:
        start, count = int(self._numbers[_END]), int(self._numbers[_COUNT])
        if start + len(whole) > max_bytes or self._record(index) is not None:
            return
        write_at(self._data, whole, start)
        # The order matters: a process that dies in between leaves a gap, but never an entry that points to another record.
        self._set(_END, start + len(whole))
        self._set(_COUNT, count + (not self._numbers[_FIRST + index]))
        self._set(_FIRST + index, start // ALIGNMENT + 1)

    def _set(self, position: int, number: int) -> None:
        os.pwrite(self._index, number.to_bytes(8, sys.byteorder), 8 * position)

    def _record(self, index: int) -> bytearray | None:
        """Return a copy of a sample's record, or None if it is missing or corrupt."""
        place = int(self._numbers[_FIRST + index])
        start = (place - 1) * ALIGNMENT
        head = self._bytes(start, start + _HEAD.size) if place else None
        if head is None:
            return None
        mark, checksum, number, size = _HEAD.unpack(head)
        record = self._bytes(start + _HEAD.size, start + _HEAD.size + size)
        if mark != _MARK or number != index or record is None:
            return None
        if index not in self._checked:
            if zlib.crc32(record) != checksum:
                return None
            self._checked.add(index)
        return record

    def close(self) -> None:
        with self._guard:
            del self._numbers
            self._index_map.close()
            if self._data_map is not None:
                self._data_map.close()
            os.close(self._data)
            os.close(self._index)

    def _bytes(self, start: int, end: int) -> bytearray | None:
        """Return a copy of a part of the data. Maps the file again if it has grown beyond the current map."""
        if self._data_map is None or end > len(self._data_map):
            if self._data_map is not None:
                self._data_map.close()
                self._data_map = None
            size = os.fstat(self._data).st_size
            if end > size:
                return None
            self._data_map = mmap.mmap(self._data, size, prot=mmap.PROT_READ)
        return bytearray(memoryview(self._data_map)[start:end])
