"""Collate into memory that is allocated once and used again in turn.

Relieves:  input: a large block of fresh memory is zeroed by the kernel page by page, for each batch again.
Numerics:  exact: the same bytes, in other memory.
Limits:    torch's own collate, in the training process; CPU tensors or arrays of one shape and type, from `min_bytes` on.
           All else is collated as before.

When may a buffer be written again? When nobody can reach the batch in it any more, and that is not guessed from counts of
batches but observed. Each batch gets a storage of its own over the buffer's memory, and what the storage holds on to (the
lease) is watched by a weak reference. Whatever still needs the batch keeps its storage alive: the batch itself, views of it
and the pieces that a plan cuts it into, arrays made of it, inputs that autograd saved for the backward pass, a user's own
list. While the lease lives the buffer is not touched, and the batch at hand gets another one, a new one at need.

How many buffers are kept? As many as are in use at once when nobody keeps a batch: what the loader reads ahead (one batch
where it does not), the batch that is trained on, and the one before it, to which the loop still refers while the next is
made. The backward pass of a piece frees what the forward pass saved, so pieces and accumulation windows need no more. A
user who keeps batches makes the ring forget the buffers in them: those batches stay whole, and later ones are reused again.

Page-locked batches (`pinned_memory`) are collated straight into page-locked memory of torch's caching allocator. It reuses
its blocks by itself, and waits for copies to the device that are still under way, which a lease cannot see.
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
"""From here on glibc's malloc may ask the kernel for fresh pages (mallopt(3), M_MMAP_THRESHOLD)."""


@dataclass(frozen=True, kw_only=True)
class ReusedBuffers(Optimization):
    """Batches in buffers that are used again.

    Attributes:
        min_bytes: Smaller tensors of a batch get fresh memory as before; 0 takes all.
    """

    min_bytes: int = MIN_BYTES

    card: ClassVar[Card] = Card(
        name="reused_buffers",
        summary="batches collated into memory that is used again, not into fresh memory each time",
        relieves=Bottleneck.INPUT,
        numerics=Numerics.EXACT,
        seam=Seam.DATASET,
        source="PyTorch documentation, torch.stack, `out`; mallopt(3), M_MMAP_THRESHOLD",
        hoped_gain=(
            "10 to 16 % of a loader that works alone, for batches above 32 MiB; about nothing where a GPU's training loop "
            "hides the loader (https://github.com/emfdavid/insitubatch/pull/21)"
        ),
        prior=0.3,
        claims=frozenset({"collate"}),
        conflicts=("loader_workers", "sequence_packing"),
        script_advice="the script collates its batches itself: pass collate_fn= one that fills kept buffers",
    )

    def __post_init__(self) -> None:
        if self.min_bytes < 0:
            raise ValueError(f"min_bytes must be at least 0, not {self.min_bytes}")

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Fit for large batches that torch's own collate makes; at most what follows loading can be saved."""
        job = facts.job
        if job.collate_is_random:
            return Fit.no("the job collates its batches itself (collate), into memory of its own")
        if job.num_workers:
            return Fit.no(f"{job.num_workers} worker processes make the batches, in shared memory")
        if facts.sample_bytes is None:
            return Fit.no("the size of a sample could not be measured")
        batch_bytes = facts.sample_bytes * job.batch_size
        if batch_bytes < MIN_BYTES:
            seen = f"{batch_bytes / 1024:.0f} KiB, less than the {MIN_BYTES // 1024} KiB"
            return Fit.no(f"a batch takes {seen} from which on memory is fresh each time")
        share = facts.ceiling_frac("input") * (1.0 - facts.load_frac)
        return Fit.yes(max_gain_frac=share, settings=[cls()])

    def apply(self, live: LiveJob) -> Undo:
        """Collate through the buffers."""
        if live.job.overrides("collate"):
            raise JobError(
                f"{type(live.job).__name__}.collate makes the batches itself: take reused_buffers out of the plan."
            )
        return replace_attribute(live.pipeline, "collate", _Buffers(live, self.min_bytes))

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Batches came in memory that had held others before, or straight into page-locked memory."""
        reused, fresh, locked = (
            int(trace.counters.get(name, 0))
            for name in ("batches_in_reused_buffers", "batches_in_new_buffers", "batches_collated_page_locked")
        )
        seen = f"{reused} in buffers used before, {fresh} in new ones, {locked} in page-locked memory"
        return [Check("batches in memory that is used again", reused + locked > 0, seen)]


class _Buffer:
    """A block of memory that holds one batch tensor at a time."""

    def __init__(self, nbytes: int) -> None:
        self.memory = torch.empty(nbytes, dtype=torch.uint8)  # aligned as any tensor: kernels may round by alignment
        self._lease: weakref.ref[Any] | None = None

    @property
    def is_free(self) -> bool:
        """Whether nobody can reach what was last put here."""
        return self._lease is None or self._lease() is None

    def lend(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A tensor over this memory with a storage of its own; the buffer is free again when that storage is gone."""
        lease = self.memory.numpy()[: math.prod(shape) * dtype.itemsize]
        self._lease = weakref.ref(lease)
        storage = torch.from_numpy(lease).untyped_storage()  # holds on to `lease` for as long as it lives
        strides = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
        return torch.empty(0, dtype=dtype).set_(storage, 0, shape, strides)


class _Buffers:
    """Collates as torch does, into rings of buffers: one ring for each large tensor of a batch. Safe in any thread."""

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
        """Whether batches are to be page-locked; the loader is set up later than this."""
        return self.live.loader.pin_memory and self.live.device.type == "cuda"

    @property
    def num_slots(self) -> int:
        """Batches in use at once: those read ahead, the present one, and the one before it."""
        loader = self.live.loader
        return (max(loader.ahead, 1) if loader.num_threads else 1) + 2

    def lend(self, place: int, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[torch.Tensor, bool]:
        """Memory for the tensor at `place` in a batch, and whether it held another before."""
        wanted = math.prod(shape) * dtype.itemsize
        with self._lock:
            ring = self.rings.setdefault(place, deque())
            free = next((buffer for buffer in ring if buffer.is_free and len(buffer.memory) >= wanted), None)
            if free is not None:
                return free.lend(shape, dtype), True
            new = _Buffer(wanted)
            lent = new.lend(shape, dtype)
            while len(ring) >= self.num_slots:  # too small, or in a batch that somebody keeps
                ring.remove(next((buffer for buffer in ring if buffer.is_free), ring[0]))
            ring.append(new)
            return lent, False


class _OneBatch:
    """Stacks the tensors of one batch, in torch's order of visiting them."""

    def __init__(self, buffers: _Buffers) -> None:
        self._buffers, self._place = buffers, 0
        self.num_new = self.num_reused = self.num_locked = 0

    def stack(self, tensors: Sequence[torch.Tensor], *, collate_fn_map: dict[Any, Callable[..., Any]]) -> Any:
        """What torch's own function for tensors gives: `[batch, ...]`."""
        first, usual = tensors[0], default_collate_fn_map[torch.Tensor]
        nbytes = len(tensors) * first.numel() * first.element_size() if type(first) is torch.Tensor else 0
        if usual is not collate_tensor_fn or nbytes < self._buffers.min_bytes or not _are_alike(tensors):
            return usual(tensors, collate_fn_map=collate_fn_map)
        shape = (len(tensors), *first.shape)
        if self._buffers.page_locked:
            self.num_locked += 1
            return torch.stack(list(tensors), out=torch.empty(shape, dtype=first.dtype, pin_memory=True))
        out, reused = self._buffers.lend(self._place, shape, first.dtype)
        self._place += 1
        self.num_reused += reused
        self.num_new += not reused
        return torch.stack(list(tensors), out=out)


def _are_alike(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether torch would stack these into one contiguous CPU tensor of their own type, without a gradient."""
    first = tensors[0]
    return all(
        type(tensor) is torch.Tensor
        and tensor.dtype == first.dtype
        and tensor.shape == first.shape
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and (tensor.dim() < 4 or tensor.is_contiguous())  # of these torch may make a batch in channels-last order
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
        for tensor in tensors
    )
