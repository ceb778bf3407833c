"""Trace one training step operator by operator without changing the run: the loop is rewound before and after.

A dispatch mode records every operator with its dtype and memory layout; compiled code runs eagerly under it. The profiler
measures each operator's share of the step.
"""

from __future__ import annotations

import itertools
import warnings
from collections import Counter
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from hasten.core.batch import iter_tensors
from hasten.core.card import StepTrace
from hasten.core.late_compiler import uncompiled
from hasten.core.layouts import shape_of
from hasten.core.live import LiveJob
from hasten.train.loop import Loop, MicroBatch
from hasten.train.periodic import rehearse

_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def trace_step(loop: Loop) -> StepTrace:
    """Trace one update from the start of the run. Afterwards, the loop is at the start, with filled caches."""
    loop.rewind()
    loop.live.counters.clear()
    batches = first_batches(loop, loop.live.batches_per_update)
    loop.run(1)
    workers = loop.stream.workers_alive()
    loop.rewind()
    lens = Lens()
    with uncompiled(), lens:
        loop.run(1, batches=batches)
    rehearse(loop)
    held = sum(p.grad is not None for group in loop.live.optimizer.param_groups for p in group["params"])
    loop.live.counters.update(workers_alive=workers, gradients_held=held)
    trace = StepTrace(
        ops=dict(lens.ops),
        op_dtypes=dict(lens.op_dtypes),
        channels_last=dict(lens.channels_last),
        batch_shapes=tuple(shape_of(tensor) for tensor in iter_tensors(batches[0][0])),
        counters=dict(loop.live.counters),
    )
    loop.rewind()
    return trace


def first_batches(loop: Loop, count: int) -> list[MicroBatch]:
    """Fetch the first batches of the run in this process without advancing the loop. They come from filled caches."""
    live = loop.live
    if live.order is None:
        epochs = (loop.stream.epoch(epoch) for epoch in itertools.count())
        return list(itertools.islice(itertools.chain.from_iterable(epochs), count))
    wanted: list[tuple[int, list[int]]] = []
    for epoch in itertools.count():
        wanted += [(epoch, indices) for indices in live.batches(epoch)]
        if len(wanted) >= count:
            break
    # If a batch has fewer samples than ranks, a rank without a share takes all of it: an empty batch shows nothing.
    mine = [(epoch, loop.ranks.share(indices) or indices) for epoch, indices in wanted[:count]]
    for epoch, indices in mine:
        live.pipeline.fetch(epoch, indices)
    return [(live.pipeline.fetch(epoch, indices), len(indices)) for epoch, indices in mine]


def op_shares(live: LiveJob, batch: MicroBatch) -> tuple[dict[str, float], dict[str, int]]:
    """Return the share of operator time and the number of calls of each operator in one forward and backward pass.

    Leaves no gradients behind.
    """
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if live.device.type == "cuda" else [])
    moved = live.to_device(batch[0])
    loop = Loop(live)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the profiler warns about its own setup
        with profile(activities=activities) as profiler:
            loss = live.compute_loss(moved)
            total = loss if isinstance(loss, torch.Tensor) else loss.total
            total.backward()
    loop.rewind()
    return read_shares(profiler, on_device=live.device.type == "cuda")


def read_shares(profiler: profile, *, on_device: bool) -> tuple[dict[str, float], dict[str, int]]:
    """Return the share of operator time and the number of calls of each operator recorded by a finished profiler.

    Args:
        profiler: The profiler.
        on_device: Use the device's time instead of the CPU's, so that all shares come from one clock.
    """
    times: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for event in profiler.key_averages():
        if event.key.startswith("aten::"):
            name = event.key.removeprefix("aten::")
            times[name] += event.self_device_time_total if on_device else event.self_cpu_time_total
            counts[name] += event.count
    total_time = sum(times.values()) or 1.0
    return {name: value / total_time for name, value in times.items()}, dict(counts)


class Lens(TorchDispatchMode):
    """Counts operators, the dtypes of their results, and channels-last results."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ops: Counter[str] = Counter()
        self.op_dtypes: Counter[tuple[str, str]] = Counter()
        self.channels_last: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.split("::")[-1]  # noqa: SLF001  an operator's name has no public accessor
        self.ops[name] += 1
        first = next(iter(iter_tensors(result)), None)
        if first is not None and first.is_floating_point():
            self.op_dtypes[name, str(first.dtype).removeprefix("torch.")] += 1
            last = _LAST.get(first.dim())
            if last is not None and first.is_contiguous(memory_format=last) and not first.is_contiguous():
                self.channels_last[name] += 1
        return result
