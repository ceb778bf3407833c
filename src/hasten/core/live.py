"""The live job: the real model, optimizer, loader and step that optimizations act on, in one process.

A host (the training loop of `hasten.train`) fills it seam by seam and calls every optimization of the plan at the seam
its card names. What an optimization may change is what stands here and nothing else.
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
"""Gives an epoch's batches as lists of sample indices; a pure function of the epoch."""


class Technique(Protocol):
    """What a live job needs of an optimization."""

    card: ClassVar[Card]

    def apply(self, live: LiveJob) -> Undo:
        """Change the live job, and return how to put everything back."""
        ...

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Prove from a traced step that the mechanism fired."""
        ...


@dataclass(kw_only=True)
class LoaderSettings:
    """How batches are fetched.

    Attributes:
        num_workers: Worker processes; 0 fetches in the training process.
        prefetch_factor: Batches each worker keeps ready; without meaning for 0 workers.
        persistent: Keep the workers between epochs.
        pin_memory: Copy batches to page-locked memory, for faster transfers to an accelerator.
        num_threads: Threads of the training process that read batches ahead; 0 is off. Not together with worker processes.
        ahead: Batches the threads keep ready or under way; without meaning for 0 threads.
        device_prefetch: Copy the next batch to a CUDA device, on a stream of its own, before the present one is trained on.
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
    """How a batch is made of sample indices: load each, finish each, collate, then adjust.

    Attributes:
        load: Reads a sample and applies the deterministic transform.
        load_many: The same for several samples in one call, in order; None reads them one by one. Not used where loading
            may draw random numbers, since each sample is seeded for itself.
        kept: Gives the kept copy of a sample, or a mark that there is none; None where nothing is kept.
        finish: Applies the random transform.
        collate: Makes one batch of the finished samples.
        adjust: Functions of (batch, loaded samples) that return the batch, applied in order.
        seed: The run's seed.
        load_is_random: Whether reading a sample may draw random numbers.
        finish_is_random: Whether finishing a sample may draw random numbers.
        collate_is_random: Whether collating may draw random numbers (masking tokens, mixing samples).
        is_table: The samples are rows of tensors in memory, and a batch is these rows stacked (of a script's loader).
        gather: A batch of such rows is picked in one call.
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
    is_table: bool = False
    gather: bool = False

    def fetch(self, epoch: int, indices: Sequence[int]) -> Any:
        """Make the batch of `indices` in `epoch`; the same whoever calls, in whichever process."""
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
        """Load the samples of a batch, unseeded: for loading that draws no random numbers; safe in any thread then."""
        return [self.load(index) for index in indices] if self.load_many is None else self.load_many(indices)

    def complete(self, epoch: int, indices: Sequence[int], loaded: list[Any]) -> Any:
        """Make the batch of samples that `read` gave; the same batch as `fetch` makes."""
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
        report_every_s: Seconds between two metric reports at least.
        report_async: A thread of its own writes the metric lines.
        checkpoint_background: The weights are copied, and a thread of its own writes the copy.
        validation_batches: Training batches that one validation batch holds; 1 is off.
        validation_contexts: Entered around each validation pass that is not measured plainly.
    """

    report_every_s: float = 0.2
    report_async: bool = False
    checkpoint_background: bool = False
    validation_batches: int = 1
    validation_contexts: list[ContextFactory] = field(default_factory=list)


@dataclass(kw_only=True, eq=False)
class LiveJob:
    """A job alive in this process. Optimizations change its fields and hand back how to undo that.

    Attributes:
        job: The user's job, in the form at work.
        as_written: The user's job as it was named.
        device: Where the model lives.
        seed: The run's seed.
        pipeline: How batches are made (seam `dataset`).
        dataset: The training dataset.
        reopen: Makes anew what the seam `dataset` begins with; None before it was made.
        num_samples: Its length; None for an iterable dataset.
        model: The model, on `device` (seam `model`).
        optimizer: Its optimizer (seam `optimizer`).
        scheduler: The learning-rate schedule, or None.
        planned_updates: Optimizer updates of the whole run, None where unknown.
        loader: How batches are fetched (seam `loader`).
        order: The sample order by epoch; None for an iterable dataset.
        batch_transforms: Applied in order to each batch on the device (seam `batch`).
        forward_contexts: Entered around `job.loss` (seam `forward`).
        batch_contexts: Made of a batch, or of a part of it, and entered around `job.loss` on it (seam `forward`).
        scaler: Gradient scaler for float16, or None (seam `backward`).
        micro_parts: Parts that each batch is computed in, their gradients added up; 1 is the whole (seam `backward`).
        sync: How gradients of several ranks are averaged during the backward pass; None adds them up after it.
        merge: Micro-batches of one update that are computed as one batch; 1 merges none, 0 all (seam `backward`).
        zero_grad_to_none: Free gradients, or fill them with zeros (seam `update`).
        read_every: Updates between two readings of the loss (seam `around`).
        around: How reports, checkpoints and validation are done (seam `around`).
        prime: Called with the sample indices a trial is about to visit, to fill caches as a second epoch finds them.
        counters: What the live parts count (cache hits, blocks checkpointed, ...), for the evidence.
        applied: The optimizations at work, with how to undo each, in the order they were applied.
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
        """Apply one optimization and remember how to undo it."""
        self.applied.append((optimization, optimization.apply(self)))

    def undo_all(self) -> None:
        """Undo every optimization, the last one first."""
        while self.applied:
            self.applied.pop()[1]()

    @property
    def batches_per_update(self) -> int:
        """Batches that are computed for one full update: its micro-batches, `merge` at a time."""
        return merged_per_update(self.job.accumulation, self.merge)

    def batches(self, epoch: int) -> list[list[int]]:
        """The sample indices of each batch that is computed in an epoch: `order`, merged; empty for an iterable dataset."""
        return [] if self.order is None else merge_windows(self.order(epoch), self.job.accumulation, self.merge)

    def count(self, name: str, amount: float = 1) -> None:
        """Add to a counter."""
        add_to(self.counters, name, amount)

    def rebuild_schedule(self) -> None:
        """Make the schedule of the present optimizer anew; needed after the optimizer was replaced."""
        self.scheduler = self.job.schedule(self.optimizer, self.planned_updates or 1)

    def to_device(self, batch: Any) -> Any:
        """Move a batch to the device, finish it there (`Job.device_transform`), and apply the batch transforms."""
        if self.device.type != "cpu":
            batch = map_tensors(batch, lambda tensor: tensor.to(self.device, non_blocking=self.loader.pin_memory))
        batch = self.job.device_transform(batch)
        for transform in self.batch_transforms:
            batch = transform(batch)
        return batch

    def whole_state(self) -> dict[str, Any]:
        """The model's state_dict with whole tensors; where they lie in shards, all ranks must ask together."""
        return self.model.state_dict() if self.sync is None else self.sync.state_dict()

    def contexts(self) -> AbstractContextManager[Any]:
        """Enter the forward contexts of the plan together."""
        stack = ExitStack()
        for make in self.forward_contexts:
            stack.enter_context(make())
        return stack

    def compute_loss(self, batch: Any) -> torch.Tensor | Loss:
        """Run `job.loss` on a batch inside the forward contexts and those of this batch."""
        if not (self.forward_contexts or self.batch_contexts):
            return self.job.loss(self.model, batch)
        with ExitStack() as stack:
            stack.enter_context(self.contexts())
            for make in self.batch_contexts:
                stack.enter_context(make(batch))
            return self.job.loss(self.model, batch)


def merged_per_update(accumulation: int, merge: int) -> int:
    """Batches that are computed for one update of `accumulation` micro-batches, `merge` at a time; 0 merges all."""
    return -(-accumulation // min(merge or accumulation, accumulation))


def merge_windows(batches: Sequence[list[int]], accumulation: int, merge: int) -> list[list[int]]:
    """The batches of an epoch as they are computed, each a list of sample indices.

    Every `accumulation` micro-batches are one update; the last update of the epoch may have fewer. Within an update, `merge`
    micro-batches after one another become one batch, in their order; what is left over becomes a smaller one. So each update
    keeps its samples.

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
        parts = (window[at : at + step] for at in range(0, len(window), step))
        merged += [[index for batch in part for index in batch] for part in parts]
    return merged
