"""The live job: the real model, optimizer, loader and step that optimizations act on, in one process.

A host (the training loop of `hasten.train`) fills it seam by seam, and applies each optimization of the plan at the seam
its card names. An optimization may change only the fields defined here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeAlias

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from hasten.core.batch import map_tensors
from hasten.core.card import Card, Check, StepTrace
from hasten.core.job import Job, Loss
from hasten.core.seams import Undo, add_to
from hasten.core.seeding import kept_random_state, seed_sample
from hasten.core.sync import GradientSync

ContextFactory: TypeAlias = Callable[[], AbstractContextManager[Any]]
BatchContextFactory: TypeAlias = Callable[[Any], AbstractContextManager[Any]]
BatchTransform: TypeAlias = Callable[[Any], Any]
BatchOrder: TypeAlias = Callable[[int], list[list[int]]]
"""Returns an epoch's batches as lists of sample indices; a pure function of the epoch."""


class Technique(Protocol):
    """The interface that a live job requires of an optimization."""

    card: ClassVar[Card]

    def apply(self, live: LiveJob) -> Undo:
        """Change the live job, and return a function that restores it."""
        ...

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Prove from a traced step that the mechanism fired."""
        ...


@dataclass(kw_only=True)
class LoaderSettings:
    """How batches are fetched.

    Attributes:
        num_workers: Worker processes; 0 fetches in the training process.
        prefetch_factor: Batches each worker prefetches. Ignored with 0 workers.
        persistent: Keep the workers between epochs.
        pin_memory: Copy batches to page-locked memory, for faster transfers to an accelerator.
        num_threads: Threads of the training process that prefetch batches; 0 is off. Cannot be combined with worker
            processes.
        ahead: Batches that the threads have ready or in progress. Ignored with 0 threads.
        device_prefetch: Copy the next batch to a CUDA device on a separate stream while the current one is trained on.
    """

    num_workers: int = 0
    prefetch_factor: int = 2
    persistent: bool = False
    pin_memory: bool = False
    num_threads: int = 0
    ahead: int = 4
    device_prefetch: bool = False


@dataclass(kw_only=True)
class Pipeline:
    """How a batch is made from sample indices: load each sample, finish each, collate, then adjust.

    Attributes:
        load: Reads a sample and applies the deterministic transform.
        load_many: Loads several samples in one call, in order; None loads them one by one. Not used if loading may draw
            random numbers, because each sample has its own seed.
        kept: Returns the cached copy of a sample, or a marker if it is not cached; None if there is no cache.
        kept_batch: Returns the batch of these samples, gathered from a cache, or None if it cannot be; None if no cache can.
        finish: Applies the random transform.
        collate: Makes one batch from the finished samples.
        adjust: Functions of (batch, loaded samples) that return the batch, applied in order.
        seed: The run's seed.
        load_is_random: Whether reading a sample may draw random numbers.
        finish_is_random: Whether finishing a sample may draw random numbers.
        collate_is_random: Whether collating may draw random numbers (masking tokens, mixing samples).
        is_table: Whether samples are rows of in-memory tensors and a batch stacks these rows (a script's loader).
        gather: Whether such a batch is gathered in one call.
    """

    load: Callable[[int], Any]
    finish: Callable[[Any], Any]
    collate: Callable[[list[Any]], Any]
    adjust: list[Callable[[Any, list[Any]], Any]] = field(default_factory=list)
    seed: int = 0
    load_is_random: bool = True
    finish_is_random: bool = False
    collate_is_random: bool = False
    load_many: Callable[[Sequence[int]], list[Any]] | None = None
    kept: Callable[[int], Any] | None = None
    kept_batch: Callable[[Sequence[int]], Any] | None = None
    is_table: bool = False
    gather: bool = False

    def fetch(self, epoch: int, indices: Sequence[int]) -> Any:
        """Return the batch of `indices` in `epoch`. The result is the same in every process and thread."""
        if not (self.load_is_random or self.finish_is_random or self.collate_is_random):
            return self._finish(epoch, indices, self.read(indices))
        with kept_random_state():
            if not self.load_is_random:
                return self._finish(epoch, indices, self.read(indices))
            loaded = []
            for index in indices:
                seed_sample(self.seed, epoch, index)
                loaded.append(self.load(index))
            return self._finish(epoch, indices, loaded)

    def read(self, indices: Sequence[int]) -> list[Any]:
        """Load the samples of a batch without seeding. Only for loading without random numbers; then thread-safe."""
        return [self.load(index) for index in indices] if self.load_many is None else self.load_many(indices)

    def complete(self, epoch: int, indices: Sequence[int], loaded: list[Any]) -> Any:
        """Return the batch of samples loaded by `read`. It equals the batch that `fetch` returns."""
        if not (self.finish_is_random or self.collate_is_random):
            return self._finish(epoch, indices, loaded)
        with kept_random_state():
            return self._finish(epoch, indices, loaded)

    def _finish(self, epoch: int, indices: Sequence[int], loaded: list[Any]) -> Any:
        finished = []
        for index, sample in zip(indices, loaded, strict=True):
            if self.finish_is_random:
                seed_sample(self.seed, epoch, index, salt=1)
            finished.append(self.finish(sample))
        if self.collate_is_random:
            seed_sample(self.seed, epoch, indices[0], salt=2)
        return self._assemble(loaded, finished)

    def _assemble(self, loaded: list[Any], finished: list[Any]) -> Any:
        batch = self.collate(finished)
        for adjust in self.adjust:
            batch = adjust(batch, loaded)
        return batch


@dataclass(kw_only=True)
class AroundSettings:
    """How the work around the updates is done: reports, checkpoints, validation.

    Attributes:
        report_every_s: Minimum seconds between two metric reports.
        report_async: Write metric lines in a background thread.
        checkpoint_background: Copy the weights, and write the copy in a background thread.
        validation_batches: Size of a validation batch in training batches; 1 is off.
        validation_contexts: Entered around each validation pass under the plan, but not around passes that measure the job
            as written.
    """

    report_every_s: float = 0.2
    report_async: bool = False
    checkpoint_background: bool = False
    validation_batches: int = 1
    validation_contexts: list[ContextFactory] = field(default_factory=list)


@dataclass(kw_only=True, eq=False)
class LiveJob:
    """A job alive in this process. Optimizations change its fields and return a function that undoes the change.

    Attributes:
        job: The user's job, in the form in use.
        as_written: The user's job as named on the command line.
        device: The device of the model.
        seed: The run's seed.
        pipeline: How batches are made (seam `dataset`).
        dataset: The training dataset.
        reopen: Recreates the dataset and pipeline from the job; None before they are first created.
        num_samples: Length of the dataset; None for an iterable dataset.
        model: The model, on `device` (seam `model`).
        optimizer: Its optimizer (seam `optimizer`).
        scheduler: The learning-rate schedule, or None.
        planned_updates: Optimizer updates of the whole run; None if unknown.
        loader: How batches are fetched (seam `loader`).
        order: The sample order by epoch; None for an iterable dataset.
        batch_transforms: Applied in order to each batch on the device (seam `batch`).
        forward_contexts: Entered around `job.loss` (seam `forward`).
        batch_contexts: Created from a batch, or a part of it, and entered around `job.loss` on it (seam `forward`).
        scaler: Gradient scaler for float16, or None (seam `backward`).
        micro_parts: Number of parts that each batch is computed in, with accumulated gradients; 1 is off (seam `backward`).
        sync: Averages gradients over ranks during the backward pass; None sums them after it.
        merge: Micro-batches of one update computed as one batch; 1 merges none, 0 all (seam `backward`).
        zero_grad_to_none: Free gradients (True) or fill them with zeros (False) (seam `update`).
        read_every: Updates between two readings of the loss (seam `around`).
        around: How reports, checkpoints and validation are done (seam `around`).
        prime: Called with the sample indices a trial is about to visit, to fill caches to the state of a second epoch.
        counters: Counters for the evidence (cache hits, blocks checkpointed, ...).
        applied: The active optimizations with their undo functions, in the order they were applied.
    """

    job: Job
    as_written: Job = field(init=False)
    device: torch.device
    seed: int
    pipeline: Pipeline = field(init=False)
    dataset: Any = field(init=False)
    reopen: Callable[[LiveJob], None] | None = None
    num_samples: int | None = None
    model: nn.Module = field(init=False)
    optimizer: Optimizer = field(init=False)
    scheduler: LRScheduler | None = None
    planned_updates: int | None = None
    loader: LoaderSettings = field(default_factory=LoaderSettings)
    order: BatchOrder | None = None
    batch_transforms: list[BatchTransform] = field(default_factory=list)
    forward_contexts: list[ContextFactory] = field(default_factory=list)
    batch_contexts: list[BatchContextFactory] = field(default_factory=list)
    scaler: torch.amp.GradScaler | None = None
    micro_parts: int = 1
    sync: GradientSync | None = None
    merge: int = 1
    zero_grad_to_none: bool = True
    read_every: int = 1
    around: AroundSettings = field(default_factory=AroundSettings)
    prime: list[Callable[[Sequence[int]], None]] = field(default_factory=list)
    counters: dict[str, float] = field(default_factory=dict)
    applied: list[tuple[Technique, Undo]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.as_written = self.job

    def apply(self, optimization: Technique) -> None:
        """Apply one optimization and remember how to undo it. If it fails, the fields of the live job are restored."""
        restore = _fields_of(self, *(vars(self)[name] for name in ("pipeline", "loader", "around") if name in vars(self)))
        try:
            undo = optimization.apply(self)
        except Exception:
            restore()
            raise
        self.applied.append((optimization, undo))

    def undo_all(self) -> None:
        """Undo every optimization, starting with the last. The first error of an undo is raised after all were undone."""
        with ExitStack() as stack:
            for _, undo in self.applied:
                stack.callback(undo)
            self.applied.clear()

    @property
    def batches_per_update(self) -> int:
        """Batches computed for one full update: its micro-batches, `merge` at a time."""
        return merged_per_update(self.job.accumulation, self.merge)

    def batches(self, epoch: int) -> list[list[int]]:
        """Return the sample indices of each batch computed in an epoch, after merging. Empty for an iterable dataset."""
        return [] if self.order is None else merge_windows(self.order(epoch), self.job.accumulation, self.merge)

    def count(self, name: str, amount: float = 1) -> None:
        """Add to a counter."""
        add_to(self.counters, name, amount)

    def rebuild_schedule(self) -> None:
        """Recreate the schedule for the current optimizer. Needed after the optimizer was replaced."""
        self.scheduler = self.job.schedule(self.optimizer, self.planned_updates or 1)

    def to_device(self, batch: Any) -> Any:
        """Move a batch to the device, apply `Job.device_transform`, then the batch transforms."""
        if self.device.type != "cpu":
            batch = map_tensors(batch, lambda tensor: tensor.to(self.device, non_blocking=self.loader.pin_memory))
        batch = self.job.device_transform(batch)
        for transform in self.batch_transforms:
            batch = transform(batch)
        return batch

    def whole_state(self) -> dict[str, Any]:
        """Return the model's state_dict with unsharded tensors. If tensors are sharded, all ranks must call it together."""
        return self.model.state_dict() if self.sync is None else self.sync.state_dict()

    def contexts(self) -> AbstractContextManager[Any]:
        """Enter all forward contexts of the plan, and return one context that exits them."""
        stack = ExitStack()
        for make in self.forward_contexts:
            stack.enter_context(make())
        return stack

    def compute_loss(self, batch: Any) -> torch.Tensor | Loss:
        """Run `job.loss` on a batch inside the forward contexts and the contexts of this batch."""
        if not (self.forward_contexts or self.batch_contexts):
            return self.job.loss(self.model, batch)
        with ExitStack() as stack:
            stack.enter_context(self.contexts())
            for make in self.batch_contexts:
                stack.enter_context(make(batch))
            return self.job.loss(self.model, batch)


def _fields_of(*owners: Any) -> Undo:
    """Return a function that restores the fields of these objects, and the items of their lists."""
    before = [(owner, dict(vars(owner))) for owner in owners]
    lists = [(value, list(value)) for _, values in before for value in values.values() if isinstance(value, list)]

    def restore() -> None:
        for owner, values in before:
            vars(owner).update(values)
        for items, old in lists:
            items[:] = old

    return restore


def merged_per_update(accumulation: int, merge: int) -> int:
    """Return the batches computed for one update of `accumulation` micro-batches, `merge` at a time; 0 merges all."""
    return -(-accumulation // min(merge or accumulation, accumulation))


def merge_windows(batches: Sequence[list[int]], accumulation: int, merge: int) -> list[list[int]]:
    """Return the batches that are computed in an epoch, each a list of sample indices.

    Every `accumulation` micro-batches form one update; the last update of the epoch may have fewer. Within an update, each
    `merge` consecutive micro-batches become one batch; the rest become a smaller batch. Each update keeps its samples.

    Args:
        batches: The micro-batches of the epoch.
        accumulation: Micro-batches per update, at least 1.
        merge: Micro-batches per batch; 1 merges none, 0 all of an update.
    """
    step = min(merge or accumulation, accumulation)
    if step == 1:
        return list(batches)
    merged: list[list[int]] = []
    for begin in range(0, len(batches), accumulation):
        window = batches[begin : begin + accumulation]
        parts = (window[start : start + step] for start in range(0, len(window), step))
        merged += [[index for batch in part for index in batch] for part in parts]
    return merged
