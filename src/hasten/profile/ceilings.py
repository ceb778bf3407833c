"""Measure ceilings: how fast the job would be if one phase were free, by running it that way.

Every counterfactual does the same updates from the same start on the same batches. Real runs before and after them make a
drift of the machine affect both sides.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch

from hasten.core.batch import batch_bytes, map_tensors, padded_length
from hasten.profile.alternatives import Form, Overhead
from hasten.train.clock import make_clock
from hasten.train.loop import Loop, MicroBatch

MAX_CACHED_BYTES = 1 << 30
"""Maximum bytes of batches kept for replay."""
WORTH_A_RUN = 0.01
"""A phase below this share gets no counterfactual run: its ceiling follows from its share."""
NEVER = 1 << 60
"""Value of `read_every` with which metrics are never read."""


@dataclass(kw_only=True)
class CeilingRun:
    """The result of the runs.

    Attributes:
        updates: Updates in each run.
        real_s: Seconds of the real run, mean of two.
        phase_s: Phase name -> seconds of the real run, mean of two.
        data_s: Seconds of making the batches alone.
        ceilings: Counterfactual -> largest gain as a ratio, at least 1.
        collecting_frac: Share of the real runs spent in Python's garbage collector.
        kernel_frac: Share of their processor time in the kernel.
    """

    updates: int
    real_s: float = 0.0
    phase_s: dict[str, float] = field(default_factory=dict)
    data_s: float = 0.0
    ceilings: dict[str, float] = field(default_factory=dict)
    collecting_frac: float = 0.0
    kernel_frac: float = 0.0


def measure_ceilings(loop: Loop, updates: int, progress: Callable[[str], None]) -> CeilingRun:
    """Run the job for real and with each counterfactual that applies. The loop is at the start afterwards."""
    run = CeilingRun(updates=updates)
    progress("fetching batches to replay")
    batches, run.data_s = _record(loop, updates)
    progress("real updates")
    overhead = Overhead()
    first_s, first_phases = _timed_phases(loop, updates, overhead)
    progress("replay: what if data loading were free")
    replays = [_timed(loop, updates, batches)]
    padding_s = _padding(loop, updates, batches, progress)
    shares = {name: seconds / first_s for name, seconds in first_phases.items()}
    others = _others(loop, updates, batches, shares, progress)
    replays.append(_timed(loop, updates, batches))
    progress("real updates again")
    second_s, second_phases = _timed_phases(loop, updates, overhead)
    run.collecting_frac = min(overhead.collecting_s / (first_s + second_s), 1.0)
    run.kernel_frac = overhead.kernel_frac
    run.real_s = (first_s + second_s) / 2
    run.phase_s = {name: (first_phases[name] + second_phases[name]) / 2 for name in first_phases}
    replay_s = sum(replays) / len(replays)
    run.ceilings["input"] = _ratio(run.real_s, replay_s)
    if loop.live.device.type == "cpu":
        # On a CPU nothing overlaps with the data phase, so at most that phase can be saved; the rest is drift.
        run.ceilings["input"] = min(run.ceilings["input"], 1.0 / (1.0 - min(run.phase_s["data"] / run.real_s, 0.999)))
    run.ceilings["compute"] = _ratio(run.real_s, run.data_s)
    if padding_s is not None:
        run.ceilings["padding"] = _ratio(run.real_s, run.real_s - max(replay_s - padding_s, 0.0))
    for name, seconds in others.items():
        run.ceilings[name] = _ratio(run.real_s, run.real_s - max(replay_s - seconds, 0.0))
    loop.rewind()
    return run


def _others(
    loop: Loop,
    updates: int,
    batches: list[MicroBatch],
    phase_frac: dict[str, float],
    progress: Callable[[str], None],
) -> dict[str, float]:
    """Return the seconds without logging, without the optimizer, and with the batches already on the device."""
    seconds, live = {}, loop.live
    worth = {name: loop.ranks.agreed(phase_frac[name]) >= WORTH_A_RUN for name in ("logging", "optimizer")}
    if worth["logging"]:
        progress("what if metrics were never read")
        read_every, live.read_every = live.read_every, NEVER
        seconds["logging"] = _timed(loop, updates, batches)
        live.read_every = read_every
    if worth["optimizer"]:
        progress("what if the optimizer were free")
        loop.steps_optimizer = False
        seconds["optimizer"] = _timed(loop, updates, batches)
        loop.steps_optimizer = True
    if live.device.type != "cpu":
        progress("what if batches were already on the device")
        moved = [(map_tensors(batch, lambda tensor: tensor.to(live.device)), size) for batch, size in batches]
        seconds["transfer"] = _timed(loop, updates, moved)
    return seconds


def _padding(loop: Loop, updates: int, batches: list[MicroBatch], progress: Callable[[str], None]) -> float | None:
    """Return the seconds with batches cut to the mean sample length; None if lengths are unknown or nothing is padded."""
    job, live = loop.live.job, loop.live
    wanted = loop.upcoming(updates)
    if not job.overrides("length") or not wanted:
        return None
    cut: list[MicroBatch] = []
    changed = False
    for (batch, size), indices in zip(batches, map(loop.ranks.share, wanted), strict=False):
        if not size:
            cut.append((batch, size))
            continue
        lengths = [job.length(live.pipeline.load(index)) for index in indices]
        keep, padded = max(round(sum(lengths) / len(lengths)), 1), padded_length(batch, len(indices))
        changed |= padded is not None and keep < padded
        cut.append((_cut(batch, (len(indices), padded), keep), size))
    if not loop.ranks.agreed(changed):
        return None
    progress("what if padding were free")
    return _timed(loop, updates, cut)


def _cut(batch: Any, padded: tuple[int, int | None], keep: int) -> Any:
    def narrow(tensor: torch.Tensor) -> torch.Tensor:
        return tensor[:, :keep].contiguous() if tensor.dim() > 1 and tensor.shape[:2] == padded else tensor

    return map_tensors(batch, narrow)


def _record(loop: Loop, updates: int) -> tuple[list[MicroBatch], float]:
    """Fetch the batches of the next updates, at most `MAX_CACHED_BYTES` of them. Returns the estimated seconds of all."""
    loop.rewind()
    wanted = updates * loop.live.batches_per_update
    started = perf_counter()
    batches: list[MicroBatch] = []
    num_bytes, epoch = 0, 0
    source = loop.stream.epoch(epoch)
    while len(batches) < wanted and num_bytes < MAX_CACHED_BYTES:
        item = next(source, None)
        if item is None:
            epoch += 1
            source = loop.stream.epoch(epoch)
            continue
        batches.append(item)
        num_bytes += batch_bytes(item[0])
    seconds = (perf_counter() - started) * wanted / len(batches)
    loop.rewind()
    return batches, seconds


def gain_within(loop: Loop, updates: int, form: Form) -> float:
    """Return how much faster updates are in another process state; 1 if the state is not available."""
    before_s = _timed(loop, updates, None)
    with form() as can:
        within_s = _timed(loop, updates, None)
    after_s = _timed(loop, updates, None)
    return _ratio((before_s + after_s) / 2, within_s) if can else 1.0


def _timed(
    loop: Loop, updates: int, batches: list[MicroBatch] | None, during: AbstractContextManager[Any] | None = None
) -> float:
    loop.rewind()
    with during or nullcontext():
        started = perf_counter()
        loop.run(updates, batches=batches)
        _wait(loop)
        return perf_counter() - started


def _timed_phases(loop: Loop, updates: int, overhead: Overhead) -> tuple[float, dict[str, float]]:
    clock, before = make_clock(loop.live.device), loop.clock
    loop.clock = clock
    try:
        seconds = _timed(loop, updates, None, overhead)
    finally:
        loop.clock = before
    return seconds, dict(clock.seconds)


def _wait(loop: Loop) -> None:
    if loop.live.device.type != "cpu":
        torch.accelerator.synchronize()


def _ratio(real_s: float, without_s: float) -> float:
    return max(real_s / max(without_s, 1e-9), 1.0)
