"""Collate batches into buffers that are allocated once and reused.

Relieves:  input: for each batch, the kernel zeroes a large block of new memory page by page.
Numerics:  exact: the same bytes, in other memory.
Limits:    torch's default collate function, in the training process, for CPU tensors or arrays of equal shape and type with
           at least `min_bytes` bytes. Everything else is collated as before.

A buffer is reused only when nothing can reach its last batch any more. This is observed, not derived from the number of
batches: each batch gets its own storage over the memory of the buffer, and a weak reference tracks an object that this
storage keeps alive (the lease). Everything that still needs the batch keeps the storage alive: the batch itself, its views
and parts, arrays that share its memory, inputs that autograd saved for the backward pass, or a list in user code. While the
lease is alive the buffer is not written, and the next batch gets another buffer, or a new one if none is free.

The number of buffers is the number of batches in use at once if user code keeps none: the prefetched batches (one if the
loader does not prefetch), the current batch, and the previous one, which the loop still references while the next batch is
created. The backward pass of a part frees what its forward pass saved, so parts and accumulation windows need no more. If
user code keeps batches, their buffers leave the ring. Those batches stay intact, and later buffers are reused as before.

Page-locked batches (`pinned_memory`) are collated directly into page-locked memory from torch's caching allocator. That
allocator reuses its blocks and waits for pending copies to the device, which a lease cannot track.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch.utils.data._utils.collate import collate, collate_tensor_fn, default_collate_fn_map

from hasten.core.card import Bottleneck, Card, Check, Numerics, StepTrace
from hasten.core.errors import JobError
from hasten.core.facts import Facts
from hasten.core.live import LiveJob
from hasten.core.optimization import Fit, Optimization
from hasten.core.seams import Seam, Undo, replace_attribute

MIN_BYTES = 128 * 1024
"""Size from which glibc's malloc may request new pages from the kernel (mallopt(3), M_MMAP_THRESHOLD)."""


@dataclass(frozen=True, kw_only=True)
class ReusedBuffers(Optimization):
    """Batches in reused buffers.

    Attributes:
        min_bytes: Smallest tensor of a batch that uses a buffer, in bytes; 0 includes all tensors.
    """

    min_bytes: int = MIN_BYTES

    card: ClassVar[Card] = Card(
        name="reused_buffers",
        summary="collate batches into reused buffers instead of newly allocated memory",
        relieves=Bottleneck.INPUT,
        numerics=Numerics.EXACT,
        seam=Seam.DATASET,
        source="PyTorch documentation, torch.stack, `out`; mallopt(3), M_MMAP_THRESHOLD",
        hoped_gain=(
            "a loader on its own 10 to 16 % faster for batches above 32 MiB; almost no gain if a GPU's training loop "
            "hides the loader (https://github.com/emfdavid/insitubatch/pull/21)"
        ),
        prior=0.3,
        claims=frozenset({"collate"}),
        conflicts=("loader_workers", "sequence_packing"),
        script_advice="the script collates its batches itself: pass a collate_fn that fills reused buffers",
    )

    def __post_init__(self) -> None:
        if self.min_bytes < 0:
            raise ValueError(f"min_bytes must be at least 0, not {self.min_bytes}")

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Applies to large batches from torch's default collate function. At most the time after loading can be saved."""
        job = facts.job
        if job.collate_is_random:
            return Fit.no("the job collates its batches itself (collate)")
        if job.num_workers:
            return Fit.no(f"{job.num_workers} worker processes create the batches, in shared memory")
        if facts.sample_bytes is None:
            return Fit.no("the size of a sample could not be measured")
        batch_bytes = facts.sample_bytes * job.batch_size
        if batch_bytes < MIN_BYTES:
            return Fit.no(
                f"a batch takes {batch_bytes / 1024:.0f} KiB, and the C library itself reuses memory below "
                f"{MIN_BYTES // 1024} KiB"
            )
        share = facts.ceiling_frac("input") * (1.0 - facts.load_frac)
        return Fit.yes(max_gain_frac=share, settings=[cls()])

    def apply(self, live: LiveJob) -> Undo:
        """Replace the collate function with one that fills the buffers."""
        if live.job.overrides("collate"):
            raise JobError(
                f"{type(live.job).__name__}.collate creates the batches itself: remove reused_buffers from the plan."
            )
        return replace_attribute(live.pipeline, "collate", _Buffers(live, self.min_bytes))

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Check that batches were collated into memory that held earlier batches, or into page-locked memory."""
        reused, fresh, locked = (
            int(trace.counters.get(name, 0))
            for name in ("batches_in_reused_buffers", "batches_in_new_buffers", "batches_collated_page_locked")
        )
        seen = f"{reused} in reused buffers, {fresh} in new buffers, {locked} in page-locked memory"
        return [Check("batches in reused memory", reused + locked > 0, seen)]


class _Buffer:
    """A block of memory that holds one batch tensor at a time."""

    def __init__(self, nbytes: int) -> None:
        self.memory = torch.empty(nbytes, dtype=torch.uint8)  # aligned like any tensor: alignment can affect rounding
        self._lease: weakref.ref[Any] | None = None

    @property
    def is_free(self) -> bool:
        """Whether nothing can reach the last tensor of this buffer any more."""
        return self._lease is None or self._lease() is None

    def lend(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor view of this buffer with its own storage. The buffer is free again when that storage is freed."""
        lease = self.memory.numpy()[: math.prod(shape) * dtype.itemsize]
        self._lease = weakref.ref(lease)
        storage = torch.from_numpy(lease).untyped_storage()  # keeps `lease` alive as long as it exists
        strides = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
        return torch.empty(0, dtype=dtype).set_(storage, 0, shape, strides)


class _Buffers:
    """Collates like torch, into rings of buffers, one ring for each large tensor of a batch. Thread-safe."""

    def __init__(self, live: LiveJob, min_bytes: int) -> None:
        self.live, self.min_bytes = live, max(min_bytes, 1)
        self.rings: dict[int, deque[_Buffer]] = {}
        self._lock = threading.Lock()

    def __call__(self, samples: list[Any]) -> Any:
        one = _OneBatch(self)
        batch = collate(samples, collate_fn_map={**default_collate_fn_map, torch.Tensor: one.stack})
        for name, happened in (
            ("batches_in_new_buffers", one.num_new > 0),
            ("batches_in_reused_buffers", one.num_reused > 0 and one.num_new == 0),
            ("batches_collated_page_locked", one.num_locked > 0),
        ):
            if happened:
                self.live.count(name)
        return batch

    @property
    def page_locked(self) -> bool:
        """Whether batches must be page-locked. It is read late, because the loader is configured after this object."""
        return self.live.loader.pin_memory and self.live.device.type == "cuda"

    @property
    def num_slots(self) -> int:
        """Number of batches in use at once: the prefetched ones, the current one, and the previous one."""
        loader = self.live.loader
        return (max(loader.ahead, 1) if loader.num_threads else 1) + 2

    def lend(self, place: int, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[torch.Tensor, bool]:
        """Return a tensor for position `place` of a batch, and whether its buffer was used before."""
        wanted = math.prod(shape) * dtype.itemsize
        with self._lock:
            ring = self.rings.setdefault(place, deque())
            free = next((buffer for buffer in ring if buffer.is_free and len(buffer.memory) >= wanted), None)
            if free is not None:
                return free.lend(shape, dtype), True
            new = _Buffer(wanted)
            lent = new.lend(shape, dtype)
            while len(ring) >= self.num_slots:  # drop a buffer that is too small, or whose batch user code keeps
                ring.remove(next((buffer for buffer in ring if buffer.is_free), ring[0]))
            ring.append(new)
            return lent, False


class _OneBatch:
    """Stacks the tensors of one batch, in the order in which torch visits them."""

    def __init__(self, buffers: _Buffers) -> None:
        self._buffers, self._place = buffers, 0
        self.num_new = self.num_reused = self.num_locked = 0

    def stack(self, tensors: Sequence[torch.Tensor], *, collate_fn_map: dict[Any, Callable[..., Any]]) -> Any:
        """Return the result of torch's own function for tensors: `[batch, ...]`."""
        first, default = tensors[0], default_collate_fn_map[torch.Tensor]
        nbytes = len(tensors) * first.numel() * first.element_size() if type(first) is torch.Tensor else 0
        if default is not collate_tensor_fn or nbytes < self._buffers.min_bytes or not _can_stack(tensors):
            return default(tensors, collate_fn_map=collate_fn_map)
        shape = (len(tensors), *first.shape)
        if self._buffers.page_locked:
            self.num_locked += 1
            return torch.stack(list(tensors), out=torch.empty(shape, dtype=first.dtype, pin_memory=True))
        out, reused = self._buffers.lend(self._place, shape, first.dtype)
        self._place += 1
        self.num_reused += reused
        self.num_new += not reused
        return torch.stack(list(tensors), out=out)


def _can_stack(tensors: Sequence[torch.Tensor]) -> bool:
    """Return whether torch would stack these into one contiguous CPU tensor of the same type, without a gradient."""
    first = tensors[0]
    return all(
        type(tensor) is torch.Tensor
        and tensor.dtype == first.dtype
        and tensor.shape == first.shape
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and (tensor.dim() < 4 or tensor.is_contiguous())  # others may be stacked in channels-last format
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
        for tensor in tensors
    )
