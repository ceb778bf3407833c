"""Seeded defects: real bugs of implementations of known techniques, each declared with the class of its technique.

If the technique exists in Hasten, the defect derives from it and keeps its card and its evidence: the mechanism really
fires, only the numbers are wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.jobs.gate_changes import Change, MicroBatches, card, scaled
from hasten.core.card import Bottleneck, Card, Check, Numerics, StepTrace
from hasten.core.job import Loss
from hasten.core.live import LiveJob, Pipeline
from hasten.core.modules import repeated_blocks
from hasten.core.packing import Packing
from hasten.core.seams import Seam, Undo, append_to, replace_attribute
from hasten.core.seeding import epoch_permutation
from hasten.optimizations.activation_checkpointing import ActivationCheckpointing
from hasten.optimizations.fused_optimizer import FusedOptimizer
from hasten.optimizations.loader_workers import LoaderWorkers
from hasten.optimizations.precision import Precision
from hasten.optimizations.sample_cache import SampleCache
from hasten.optimizations.sequence_packing import SequencePacking
from hasten.optimizations.zero_grad_to_none import ZeroGradToNone


class CheckpointingWithoutRng(ActivationCheckpointing):
    """Blocks recomputed with other dropout masks than the first time."""

    card: ClassVar[Card] = replace(ActivationCheckpointing.card, name="gate_checkpointing_without_rng")

    def apply(self, live: LiveJob) -> Undo:
        """Checkpoint every block without saving the random state."""
        undos = [replace_attribute(block, "forward", _forgetful(live, block)) for block in repeated_blocks(live.model)]

        def undo() -> None:
            for one in undos:
                one()

        return undo


def _forgetful(live: LiveJob, block: nn.Module) -> Callable[..., Any]:
    forward = block.forward

    def run(*args: Any) -> Any:
        live.count("blocks_run")
        return forward(*args)

    def wrapped(*args: Any) -> Any:
        if not (block.training and torch.is_grad_enabled()):
            return forward(*args)
        live.count("blocks_checkpointed")
        return checkpoint(run, *args, use_reentrant=False, preserve_rng_state=False)

    return wrapped


class MeanOfMeans(MicroBatches):
    """Micro-batches whose means are averaged, although they have unequal numbers of tokens."""

    card: ClassVar[Card] = replace(MicroBatches.card, name="gate_mean_of_means")

    def join(self, parts: list[Loss]) -> Any:
        """Average the averages."""
        return torch.stack([part.total / part.weight for part in parts]).mean()


class ClipBeforeUnscale(Precision):
    """Gradients clipped while they are still multiplied by the loss scale."""

    card: ClassVar[Card] = replace(Precision.card, name="gate_clip_before_unscale")

    def apply(self, live: LiveJob) -> Undo:
        """Use a scaler that unscales only in its step."""
        return scaled(live, _LateScaler("cpu", init_scale=2.0**10))

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Check as for float16."""
        return Precision(dtype="float16").evidence(live, trace)


class _LateScaler(torch.amp.GradScaler):
    stepping = False

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        if self.stepping:
            super().unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        self.stepping = True
        found = super().step(optimizer, *args, **kwargs)
        self.stepping = False
        return found


class SkippingScaler(ClipBeforeUnscale):
    """A loss scale that repeatedly grows until it overflows: one update in five is silently skipped."""

    card: ClassVar[Card] = replace(Precision.card, name="gate_skipping_scaler")

    def apply(self, live: LiveJob) -> Undo:
        """Use a scaler that grows every fourth update."""
        return scaled(live, torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=4))


class Float16WithoutScaler(ClipBeforeUnscale):
    """Half precision in which small gradients become zero."""

    card: ClassVar[Card] = replace(Precision.card, name="gate_float16_without_scaler")

    def apply(self, live: LiveJob) -> Undo:
        """Enter autocast without a scaler."""
        return append_to(live.forward_contexts, lambda: torch.autocast("cpu", dtype=torch.float16))


class CacheAfterAugmentation(SampleCache):
    """A cache after the random transform: each sample always looks the same."""

    card: ClassVar[Card] = replace(SampleCache.card, name="gate_cache_after_augmentation")

    def apply(self, live: LiveJob) -> Undo:
        """Cache the result of `finish`."""
        load, finish = live.pipeline.load, live.pipeline.finish
        kept: dict[int, Any] = {}

        def finish_once(numbered: tuple[int, Any]) -> Any:
            index, sample = numbered
            if index in kept:
                live.count(self.card.name)
            else:
                kept[index] = finish(sample)
            return kept[index]

        undo_load = replace_attribute(live.pipeline, "load", lambda index: (index, load(index)))
        undo_finish = replace_attribute(live.pipeline, "finish", finish_once)

        def undo() -> None:
            undo_finish()
            undo_load()

        return undo

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Check that samples were taken from the cache."""
        hits = trace.counters.get(self.card.name, 0)
        return [Check("samples taken from the cache", hits > 0, f"{hits:.0f} hits")]


class FrozenWorkerSeeds(LoaderWorkers):
    """Workers seeded from the sample alone: each epoch repeats the same augmentation."""

    card: ClassVar[Card] = replace(LoaderWorkers.card, name="gate_frozen_worker_seeds", conflicts=())

    def apply(self, live: LiveJob) -> Undo:
        """Start workers that do not know the epoch."""
        undo_workers = super().apply(live)
        old = live.pipeline
        live.pipeline = _OneEpoch(**vars(old))

        def undo() -> None:
            live.pipeline = old
            undo_workers()

        return undo


class _OneEpoch(Pipeline):
    def fetch(self, epoch: int, indices: Any) -> Any:
        return super().fetch(0, indices)


class LabelsShuffled(SequencePacking):
    """Packed rows whose targets are in another order than their inputs."""

    card: ClassVar[Card] = replace(SequencePacking.card, name="gate_labels_shuffled", conflicts=())

    def apply(self, live: LiveJob) -> Undo:
        """Pack, then corrupt."""
        undo = super().apply(live)
        pack = live.pipeline.collate
        live.pipeline.collate = lambda samples: self.corrupt(*pack(samples))
        return undo

    def corrupt(self, inputs: torch.Tensor, targets: torch.Tensor, packing: Packing) -> Any:
        """Arrange the targets from the last sample to the first."""
        return inputs, torch.cat(list(targets.split(packing.lengths, 1))[::-1], 1), packing


class AttentionAcrossDocuments(LabelsShuffled):
    """Packed rows in which a sample attends to the samples before it."""

    card: ClassVar[Card] = replace(SequencePacking.card, name="gate_attention_across_documents", conflicts=())

    def corrupt(self, inputs: torch.Tensor, targets: torch.Tensor, packing: Packing) -> Any:
        """Treat the row as one sample."""
        total = sum(packing.lengths)
        return inputs, targets, Packing(lengths=(total,), positions=packing.positions, offsets=torch.tensor([0, total]))


class FixedBatchLoss(Change):
    """Batches padded to a fixed size for static shapes, with the loss divided by that size in the short last one too."""

    card: ClassVar[Card] = card("gate_fixed_batch_loss", Numerics.ROUNDING, Seam.FORWARD)

    def apply(self, live: LiveJob) -> Undo:
        """Divide by the full batch size."""
        loss: Callable[..., Any] = live.job.loss

        def fixed(model: nn.Module, batch: Any) -> Any:
            live.count(self.card.name)
            return loss(model, batch) * (len(batch[1]) / live.job.batch_size if model.training else 1.0)

        return replace_attribute(live.job, "loss", fixed)


class FrozenStatistics(Change):
    """Batch normalization left in evaluation mode after a validation pass."""

    card: ClassVar[Card] = card("gate_frozen_statistics", Numerics.ROUNDING, Seam.MODEL)

    def apply(self, live: LiveJob) -> Undo:
        """Switch the norms to evaluation mode before each forward pass."""
        norms = [module for module in live.model.modules() if isinstance(module, nn.BatchNorm2d)]

        def leave_in_eval(*_: Any) -> None:
            live.count(self.card.name)
            for norm in norms:
                norm.eval()

        return live.model.register_forward_pre_hook(leave_in_eval).remove


class DropoutLost(Change):
    """Fused blocks without dropout."""

    card: ClassVar[Card] = card("gate_dropout_lost", Numerics.ROUNDING, Seam.MODEL)

    def apply(self, live: LiveJob) -> Undo:
        """Disable dropout."""
        drops = [module for module in live.model.modules() if isinstance(module, nn.Dropout)]

        def nothing(inputs: torch.Tensor) -> torch.Tensor:
            live.count(self.card.name)
            return inputs

        undos = [replace_attribute(drop, "forward", nothing) for drop in drops]

        def undo() -> None:
            for one in undos:
                one()

        return undo


class FusedWithoutGroups(FusedOptimizer):
    """An optimizer recreated from the parameters alone: the weight decay of each group is lost."""

    card: ClassVar[Card] = replace(FusedOptimizer.card, name="gate_fused_without_groups")

    def apply(self, live: LiveJob) -> Undo:
        """Create it from the parameters and the rate."""
        return self.exchange(live, list(live.model.parameters()))

    def exchange(self, live: LiveJob, parameters: list[nn.Parameter]) -> Undo:
        """Use a new fused optimizer over `parameters`."""
        rate = live.optimizer.param_groups[0]["lr"]
        return replace_attribute(live, "optimizer", torch.optim.AdamW(parameters, lr=rate, weight_decay=0.0, fused=True))


class BiasesForgotten(FusedWithoutGroups):
    """An optimizer recreated from the matrices alone: biases and norms are not trained."""

    card: ClassVar[Card] = replace(FusedOptimizer.card, name="gate_biases_forgotten")

    def apply(self, live: LiveJob) -> Undo:
        """Create it from the group with weight decay."""
        group = live.optimizer.param_groups[0]
        return replace_attribute(live, "optimizer", torch.optim.AdamW([dict(group, fused=True)]))


class ScheduleLost(FusedOptimizer):
    """An optimizer recreated without the schedule, which still controls the old one."""

    card: ClassVar[Card] = replace(FusedOptimizer.card, name="gate_schedule_lost", seam=Seam.UPDATE)

    def apply(self, live: LiveJob) -> Undo:
        """Create it with the job's initial rate."""
        groups = [dict(group, fused=True, lr=group["initial_lr"]) for group in live.optimizer.param_groups]
        return replace_attribute(live, "optimizer", torch.optim.AdamW(groups))


class StaleGradient(ZeroGradToNone):
    """One parameter whose gradient is never cleared; the evidence passes, so that only the numbers can reveal it."""

    card: ClassVar[Card] = replace(ZeroGradToNone.card, name="gate_stale_gradient")

    def apply(self, live: LiveJob) -> Undo:
        """Restore the last parameter's gradient after it was cleared."""
        optimizer, last = live.optimizer, list(live.model.parameters())[-1]
        clear = optimizer.zero_grad

        def forgetful(*, set_to_none: bool = True) -> None:
            kept = last.grad
            clear(set_to_none=set_to_none)
            last.grad = kept

        live.zero_grad_to_none = True
        return replace_attribute(optimizer, "zero_grad", forgetful)

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Check that most gradients are freed."""
        left = int(trace.counters.get("gradients_held", -1))
        return [Check("gradients freed after the update", 0 <= left <= 1, f"{left} gradients still held")]


class ShortToLong(Change):
    """Bucketing without shuffling the batches: each epoch ends with its longest samples."""

    card: ClassVar[Card] = card("gate_short_to_long", Numerics.TRAINING, Seam.LOADER, relieves=Bottleneck.PADDING)

    def apply(self, live: LiveJob) -> Undo:
        """Sort each epoch by length."""
        lengths = [live.job.length(live.dataset[index]) for index in range(live.num_samples or 0)]
        size = live.job.batch_size

        def order(epoch: int) -> list[list[int]]:
            live.count(self.card.name)
            chosen = self.choose(sorted(epoch_permutation(len(lengths), live.seed, epoch), key=lengths.__getitem__), epoch)
            return [chosen[at : at + size] for at in range(0, len(chosen), size)]

        return replace_attribute(live, "order", order)

    def choose(self, by_length: list[int], epoch: int) -> list[int]:
        """Keep all, in sorted order."""
        return by_length


class LongDropped(ShortToLong):
    """A batcher with a length limit that silently drops the longest samples."""

    card: ClassVar[Card] = card("gate_long_dropped", Numerics.TRAINING, Seam.LOADER, relieves=Bottleneck.PADDING)

    def choose(self, by_length: list[int], epoch: int) -> list[int]:
        """Keep the shorter part, shuffled."""
        kept = len(by_length) * 7 // 10
        return [by_length[at] for at in epoch_permutation(kept, 7, epoch)]
