"""Small measurements of the machine and of a live job: matrix products, samples, memory, structure."""

from __future__ import annotations

import ctypes
import pickle
import resource
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import torch
from torch.utils.data import Subset

from hasten.core.batch import content, padded_length
from hasten.core.facts import JobFacts
from hasten.core.job import counted_mask
from hasten.core.live import LiveJob
from hasten.core.modules import module_counts, repeated_blocks
from hasten.core.packing import packs_to_multiple
from hasten.train.ranks import current_ranks

OPTIONAL_PACKAGES = ("torchao",)
"""Packages that a technique may need but Hasten itself does not."""

PATH_NAMES = ("root", "path", "folder", "directory", "data_dir", "data_path", "data_file", "file", "filename")
"""Common names of the dataset attribute that contains the path of the data."""

MATMUL_SIZE = 768
MATMUL_ROUNDS = 5


def bf16_matmul_gain(device: torch.device) -> float:
    """Return the speed of a bfloat16 matrix product over float32 on `device`: interleaved, the best of a few each."""
    size = MATMUL_SIZE if device.type == "cpu" else 4 * MATMUL_SIZE
    generator = torch.Generator().manual_seed(0)
    plain = torch.randn(size, size, generator=generator).to(device)
    half = plain.to(torch.bfloat16)
    best = {torch.float32: float("inf"), torch.bfloat16: float("inf")}
    for _ in range(MATMUL_ROUNDS):
        for matrix in (plain, half):
            started = perf_counter()
            torch.mm(matrix, matrix)
            if device.type != "cpu":
                torch.accelerator.synchronize()
            best[matrix.dtype] = min(best[matrix.dtype], perf_counter() - started)
    return best[torch.float32] / best[torch.bfloat16]


@dataclass(frozen=True, kw_only=True)
class InputProbe:
    """How batches are made.

    Attributes:
        load_frac: Share of the time spent loading and in the deterministic transform.
        wait_frac: Share of the time in which the process was not on a core; None if no batch was made.
        sample_bytes: Bytes of one loaded sample: its tensors, and the rest of it pickled; None if it cannot be pickled.
        padding_frac: Share of positions that are padding.
        excess_padding_frac: Share of positions beyond the longest sample of their batch.
    """

    load_frac: float = 0.0
    wait_frac: float | None = None
    sample_bytes: int | None = None
    padding_frac: float = 0.0
    excess_padding_frac: float = 0.0


def probe_input(live: LiveJob, indices: list[list[int]]) -> InputProbe:
    """Make a few batches and measure where their time goes. `indices`: samples of each batch."""
    pipeline, load_s, positions, real, longest_sum = live.pipeline, 0.0, 0, 0, 0
    has_length = live.job.overrides("length")
    size: int | None = None
    started, on_core = perf_counter(), process_time()
    for batch_indices in indices:
        before = perf_counter()
        loaded = pipeline.read(batch_indices)
        load_s += perf_counter() - before
        size = _sample_bytes(loaded[0]) if size is None else size
        batch = pipeline.collate([pipeline.finish(sample) for sample in loaded])
        for adjust in pipeline.adjust:
            batch = adjust(batch, loaded)
        padded = padded_length(batch, len(loaded))
        if has_length and padded:
            lengths = [live.job.length(sample) for sample in loaded]
            positions += padded * len(lengths)
            real += sum(lengths)
            longest_sum += min(max(lengths), padded) * len(lengths)
    wall, core = perf_counter() - started, process_time() - on_core
    return InputProbe(
        load_frac=load_s / wall if wall else 0.0,
        wait_frac=max(0.0, 1.0 - core / wall) if wall and indices else None,
        sample_bytes=size,
        padding_frac=1.0 - real / positions if positions else 0.0,
        excess_padding_frac=1.0 - longest_sum / positions if positions else 0.0,
    )


def counted_frac(live: LiveJob, batches: Iterable[Any]) -> float:
    """Return the share of positions in these batches where the loss uses the model's output, from the job's `counted`."""
    masks = [counted_mask(live.job, live.to_device(batch)) for batch in batches]
    positions = sum(mask.numel() for mask in masks)
    return sum(int(mask.sum()) for mask in masks) / positions if positions else 1.0


def installed_packages() -> tuple[str, ...]:
    """Return the optional packages that are installed, without importing them."""
    return tuple(name for name in OPTIONAL_PACKAGES if find_spec(name) is not None)


def job_facts(live: LiveJob) -> JobFacts:
    """Return the facts about a live job that can be read without running it."""
    trained = [p for p in live.model.parameters() if p.requires_grad]
    updates = None
    if live.order is not None:
        updates = -(-len(live.order(0)) // live.job.accumulation)
    return JobFacts(
        device=live.device.type,
        operator_threads=torch.get_num_threads(),
        optimizer_class=type(live.optimizer).__name__,
        optimizer_fused=bool(live.optimizer.defaults.get("fused")),
        num_params=sum(p.numel() for p in trained),
        num_param_tensors=len(trained),
        largest_param=max((p.numel() for p in trained), default=0),
        module_counts=module_counts(live.model),
        repeated_blocks=len(repeated_blocks(live.model)),
        param_dtypes=tuple(sorted({str(p.dtype).removeprefix("torch.") for p in trained})),
        batch_size=live.job.batch_size,
        accumulation=live.job.accumulation,
        num_samples=live.num_samples,
        planned_updates=live.planned_updates,
        updates_per_epoch=updates,
        has_length=live.job.overrides("length"),
        has_collate_packed=live.job.overrides("collate_packed"),
        packs_to_multiple=packs_to_multiple(live.job),
        has_counted=live.job.overrides("counted"),
        has_deterministic_transform=live.job.overrides("deterministic_transform"),
        has_quality=live.job.quality is not None,
        has_schedule=live.job.overrides("schedule") and live.scheduler is not None,
        read_every=live.read_every,
        zero_grad_to_none=live.zero_grad_to_none,
        num_workers=live.loader.num_workers,
        pin_memory=live.loader.pin_memory,
        num_threads=live.loader.num_threads,
        device_prefetch=live.loader.device_prefetch,
        shuffle=live.job.shuffle,
        has_getitems=_has_getitems(live.dataset),
        data_path=data_path(live.dataset),
        load_is_random=live.pipeline.load_is_random,
        finish_is_random=live.pipeline.finish_is_random,
        collate_is_random=live.pipeline.collate_is_random,
        ranks=current_ranks().world,
        forms=tuple(form.__name__ for form in live.job.forms if form is not type(live.job)),
        gradient_sync="flat" if live.sync is None else live.sync.kind,
    )


def _has_getitems(dataset: Any) -> bool:
    """Return whether a dataset reads several samples in one call. A Subset always has the method, but may only loop."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return callable(getattr(dataset, "__getitems__", None))


def data_path(dataset: Any) -> str:
    """Return the file or folder that a dataset reads, from its attributes with common names; empty if there is none."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    attributes = getattr(dataset, "__dict__", {})
    for name in PATH_NAMES:
        value = attributes.get(name, attributes.get(f"_{name}"))
        if isinstance(value, str | Path) and str(value):
            with suppress(OSError):  # a text that is not a path, such as a very long one
                if Path(value).exists():
                    return str(value)
    return ""


_PURGE_ALL = b"arena.4096.purge"
"""Command to jemalloc that releases the free memory of all its arenas."""


def reset_peak_memory() -> None:
    """Reset the peak memory of this process and its accelerator (Linux 4.0+; elsewhere the peak since the start remains).

    Freed memory is returned to the system first if the allocator can do that (GNU's, tcmalloc, jemalloc). Otherwise memory
    that earlier work needed would still count.
    """
    _give_back_freed()
    reset = Path("/proc/self/clear_refs")
    if reset.exists():
        try:
            reset.write_text("5", encoding="ascii")
        except OSError:  # a restricted container: the peak since the process started remains
            return
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def _give_back_freed() -> None:
    ways = (("malloc_trim", (0,)), ("MallocExtension_ReleaseFreeMemory", ()), ("mallctl", (_PURGE_ALL, None, None, None, 0)))
    for name, arguments in ways:
        with suppress(AttributeError, OSError, TypeError):  # another allocator, or a system that does not support this
            getattr(ctypes.CDLL(None), name)(*arguments)


def peak_memory_bytes() -> int:
    """Return the highest resident memory of this process since the reset, or that of the accelerator if one is used."""
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def memory_limit_bytes(device: torch.device, host_limit: int) -> int:
    """Return the memory limit of the device that the model is on."""
    return int(torch.cuda.get_device_properties(device).total_memory) if device.type == "cuda" else host_limit


def _sample_bytes(sample: Any) -> int | None:
    try:
        tensors, rest = content(sample)
    except (pickle.PicklingError, TypeError, AttributeError, RuntimeError):  # RuntimeError: a tensor that is not dense
        return None
    return sum(len(data) for _, _, data in tensors) + len(rest)
