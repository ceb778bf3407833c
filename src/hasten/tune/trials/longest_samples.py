"""Hold a job to its worst case, inside a trial process: one optimizer batch of the longest real samples.

What decides whether a batch fits is the longest sample, and it is rare: the first batches of a run seldom hold it. A whole
update is run, because the optimizer's state exists only after its first step, and a second one, which then meets that
state; last comes a held-out batch.
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
"""The highest score: where the system lacks memory, it ends this process before any other."""


def micro_batch_size(live: LiveJob) -> int:
    """Samples of a full micro-batch under the plan, which may make it another than the job's `batch_size`."""
    return live.job.batch_size if live.order is None else max(len(batch) for batch in live.order(0))


def find_longest(live: LiveJob, *, most: int, seconds: float) -> dict[str, Any]:
    """The longest samples of the training data: by `job.length` where that is written, else by their bytes.

    Args:
        live: The live job.
        most: How many to find.
        seconds: Look no longer than this; the samples are looked at in random order, so that any part of the data counts.

    Returns:
        `indices`, the longest first; `sizes`, of each; `unit`, `items` or `bytes`; `scanned`, of `num_samples`.

    Raises:
        JobError: The data has no index, or does not fill one optimizer batch.
    """
    name, count = type(live.job).__name__, live.num_samples
    if live.order is None or count is None:
        raise JobError(f"{name} reads an iterable dataset: its longest samples cannot be asked for. Give a map-style one.")
    if count < most:
        needed = f"batch_size {micro_batch_size(live)} x accumulation {live.job.accumulation} = {most}"
        raise JobError(f"{name} has {count} samples, which do not fill one optimizer batch ({needed}). Lower one of them.")
    order = random.Random(live.seed).sample(range(count), count)  # noqa: S311  an order of reading, no secret
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
    """Do updates on these samples, forward, backward and step, and measure one held-out batch. The loop has moved.

    Args:
        loop: A loop that has done nothing yet.
        indices: The samples of one optimizer batch, the longest first.
        updates: How many; 2 at least meet the optimizer's state.

    Returns:
        `update_s`, seconds of the last update; `peak_bytes` of this process so far and the `limit_bytes` it is held to;
        `retries`, how often the device's allocator had to give memory back first; `typical_s`, seconds of one update on the
        job's own data, done last.
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
    """The peak memory of this process and its limit, in bytes, both of one kind.

    On a CUDA device what was taken from the device, which is more than what tensors filled; where the address space is
    limited (`ulimit -v`), address space; else resident memory.
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
    """Bytes of a sample: its tensors, and the rest of it pickled; 0 where it cannot be told."""
    try:
        tensors, rest = content(sample)
    except (pickle.PicklingError, TypeError, AttributeError, RuntimeError):  # the last one: a tensor that is not dense
        return 0
    return sum(len(data) for _, _, data in tensors) + len(rest)


def end_this_process_first() -> None:
    """Offer this process to the system where memory runs out: a trial dies, and nothing of the user's."""
    with contextlib.suppress(OSError):  # no Linux, or a locked-down container: then the system chooses
        Path("/proc/self/oom_score_adj").write_text(MOST_WILLING, encoding="ascii")


class _Window(Sequence[MicroBatch]):
    """The batches of one update, each made as it is taken, as in training."""

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
    """Seconds of one update on `window`; None is the job's own data."""
    started = perf_counter()
    loop.run(1, batches=window)
    if loop.live.device.type != "cpu":
        torch.accelerator.synchronize()
    return perf_counter() - started
