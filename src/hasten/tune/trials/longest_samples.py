"""Run the worst case of a job inside a trial process: one optimizer batch of the longest real samples.

The longest sample decides whether a batch fits, and it is rare: the first batches of a run seldom contain it. A whole update
is run, because the optimizer's state exists only after its first step, then a second one with that state, then a held-out
batch.
"""

from __future__ import annotations

import contextlib
import heapq
import pickle
import random
import resource
from collections.abc import Sequence
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any, overload

import torch

from hasten.core.batch import content
from hasten.core.errors import JobError
from hasten.core.live import LiveJob, merge_windows
from hasten.core.machine import read_memory_limit
from hasten.core.seeding import kept_random_state, seed_sample
from hasten.profile.probes import memory_limit_bytes, peak_memory_bytes
from hasten.train.loop import Loop, MicroBatch
from hasten.train.validate import HeldOut

MOST_WILLING = "1000"
"""The highest score: if memory runs out, the system ends this process first."""


def micro_batch_size(live: LiveJob) -> int:
    """Return the samples of a full micro-batch under the plan, which may differ from the job's `batch_size`."""
    return live.job.batch_size if live.order is None else max(len(batch) for batch in live.order(0))


def find_longest(live: LiveJob, *, most: int, seconds: float) -> dict[str, Any]:
    """Find the longest samples of the training data: by `job.length` if defined, otherwise by their bytes.

    Args:
        live: The live job.
        most: Number of samples to find.
        seconds: Maximum time. Samples are read in random order, so that any scanned part is representative.

    Returns:
        `indices`, longest first; their `sizes`; `unit`, `items` or `bytes`; `scanned`, the number of samples read of
        `num_samples`.

    Raises:
        JobError: The data has no index, or does not fill one optimizer batch.
    """
    name, count = type(live.job).__name__, live.num_samples
    if live.order is None or count is None:
        raise JobError(f"{name} has an iterable dataset, which has no longest samples to look up. Use a map-style one.")
    if count < most:
        needed = f"batch_size {micro_batch_size(live)} x accumulation {live.job.accumulation} = {most}"
        raise JobError(f"{name} has {count} samples, too few for one optimizer batch ({needed}). Lower one of these.")
    order = random.Random(live.seed).sample(range(count), count)  # noqa: S311  a reading order, not a secret
    by_length = live.job.overrides("length")
    sized: list[tuple[int, int]] = []
    scanned, until = 0, monotonic() + seconds
    with kept_random_state():
        for index in order:
            if scanned >= most and monotonic() > until:
                break
            seed_sample(live.seed, 0, index)
            sample = live.pipeline.load(index)
            sized.append((live.job.length(sample) if by_length else sample_bytes(sample), index))
            scanned += 1
    longest = heapq.nlargest(most, sized, key=lambda item: (item[0], -item[1]))
    return {
        "indices": [index for _, index in longest],
        "sizes": [size for size, _ in longest],
        "unit": "items" if by_length else "bytes",
        "scanned": scanned,
        "num_samples": count,
    }


def hold_longest(loop: Loop, *, indices: Sequence[int], updates: int) -> dict[str, Any]:
    """Do updates on these samples, with forward, backward and step, and measure one held-out batch. The loop moves.

    Args:
        loop: A loop that has done nothing yet.
        indices: The samples of one optimizer batch, longest first.
        updates: Number of updates; at least 2 to include the optimizer's state.

    Returns:
        `update_s`, seconds of the last update; `peak_bytes` of this process so far and its `limit_bytes`; `retries`, how
        often the device's allocator had to free memory first; `typical_s`, seconds of one update on the job's own data,
        which is done last.
    """
    live = loop.live
    end_this_process_first()
    seconds = 0.0
    for number in range(updates):
        seconds = _timed_update(loop, _Window(live, indices, number))
    held_out = HeldOut.where_given(live)
    if held_out is not None:
        held_out.measure(max_batches=1)
    peak, limit = memory_account(live)
    retries = torch.cuda.memory_stats(live.device).get("num_alloc_retries", 0) if live.device.type == "cuda" else 0
    typical = _timed_update(loop, None)
    return {
        "update_s": seconds, "peak_bytes": peak, "limit_bytes": limit, "retries": int(retries), "typical_s": typical,
    }  # fmt: skip


def memory_account(live: LiveJob) -> tuple[int, int]:
    """Return the peak memory of this process and its limit, in bytes, both of the same kind.

    On a CUDA device this is the memory reserved on the device, which is more than the tensors use. If the address space is
    limited (`ulimit -v`), it is address space; otherwise resident memory.
    """
    host = read_memory_limit().value
    if live.device.type == "cuda":
        return int(torch.cuda.max_memory_reserved(live.device)), memory_limit_bytes(live.device, host)
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    status = Path("/proc/self/status")
    if space == host and status.exists():
        for line in status.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmPeak:"):
                return int(line.split()[1]) * 1024, host
    return peak_memory_bytes(), host


def sample_bytes(sample: Any) -> int:
    """Return the bytes of a sample: its tensors, and the rest of it pickled; 0 if unknown."""
    try:
        tensors, rest = content(sample)
    except (pickle.PicklingError, TypeError, AttributeError, RuntimeError):  # RuntimeError: a tensor that is not dense
        return 0
    return sum(len(data) for _, _, data in tensors) + len(rest)


def end_this_process_first() -> None:
    """Ask the system to end this process first if memory runs out, so that only a trial dies."""
    with contextlib.suppress(OSError):  # not Linux, or a restricted container: the system chooses
        Path("/proc/self/oom_score_adj").write_text(MOST_WILLING, encoding="ascii")


class _Window(Sequence[MicroBatch]):
    """The batches of one update. Each is created when it is used, as in training."""

    def __init__(self, live: LiveJob, indices: Sequence[int], epoch: int) -> None:
        size, own = micro_batch_size(live), list(indices)
        plain = [own[i : i + size] for i in range(0, len(own), size)]
        self._live, self._epoch = live, epoch
        self._batches = merge_windows(plain, live.job.accumulation, live.merge)

    def __len__(self) -> int:
        return len(self._batches)

    @overload
    def __getitem__(self, position: int) -> MicroBatch: ...

    @overload
    def __getitem__(self, position: slice) -> list[MicroBatch]: ...

    def __getitem__(self, position: int | slice) -> MicroBatch | list[MicroBatch]:
        if isinstance(position, slice):
            return [self[number] for number in range(len(self))[position]]
        batch = self._batches[position]
        return self._live.pipeline.fetch(self._epoch, batch), len(batch)


def _timed_update(loop: Loop, window: Sequence[MicroBatch] | None) -> float:
    """Return the seconds of one update on `window`; None uses the job's own data."""
    started = perf_counter()
    loop.run(1, batches=window)
    if loop.live.device.type != "cpu":
        torch.accelerator.synchronize()
    return perf_counter() - started
