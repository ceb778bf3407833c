"""Harmless changes that are not techniques of the catalogue: other rounding or other order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import nn

from hasten.core.batch import map_tensors
from hasten.core.card import Bottleneck, Card, Check, Numerics, StepTrace
from hasten.core.facts import Facts
from hasten.core.job import Loss
from hasten.core.live import LiveJob
from hasten.core.optimization import Fit, Optimization
from hasten.core.seams import Seam, Undo, append_to, replace_attribute
from hasten.core.seeding import epoch_permutation
from hasten.optimizations.precision import Precision

NUM_PARTS = 4


def card(name: str, numerics: Numerics, seam: Seam, relieves: Bottleneck = Bottleneck.COMPUTE) -> Card:
    """Create the card of a case of this benchmark."""
    return Card(name=name, summary=name, relieves=relieves, numerics=numerics, seam=seam, source="benchmarks/gate.py")


class Change(Optimization):
    """A change that always fits, and counts under its own name how often it was active."""

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Always fit: this benchmark tests what happens afterwards."""
        return Fit.yes(max_gain_frac=0.5, settings=[cls()])

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Check that the change was active in the step."""
        seen = trace.counters.get(self.card.name, 0) or live.counters.get(self.card.name, 0)
        return [Check("at work", seen > 0, f"{seen:.0f} times")]


class MicroBatches(Change):
    """A batch computed in parts whose sums are added."""

    card: ClassVar[Card] = card("gate_micro_batches", Numerics.ROUNDING, Seam.FORWARD)

    def apply(self, live: LiveJob) -> Undo:
        """Compute the loss part by part in training."""
        loss = live.job.loss

        def in_parts(model: nn.Module, batch: Any) -> Any:
            if not model.training or len(batch[0]) < NUM_PARTS:
                return loss(model, batch)
            live.count(self.card.name)
            rows = torch.arange(len(batch[0])).tensor_split(NUM_PARTS)
            parts: list[Any] = [loss(model, _rows(batch, some)) for some in rows]
            return self.join(parts)

        return replace_attribute(live.job, "loss", in_parts)

    def join(self, parts: list[Loss]) -> Any:
        """Add sums and weights."""
        totals, weights = ([getattr(part, name) for part in parts] for name in ("total", "weight"))
        return Loss(torch.stack(totals).sum(), torch.stack(weights).sum())


def _rows(batch: Any, rows: torch.Tensor) -> Any:
    return map_tensors(batch, lambda tensor: tensor[rows])


class OtherSampleOrder(Change):
    """The samples of each batch in reverse order, so that sums run in another order."""

    card: ClassVar[Card] = card("gate_other_sample_order", Numerics.ROUNDING, Seam.BATCH)

    def apply(self, live: LiveJob) -> Undo:
        """Reverse each batch."""

        def turn(batch: Any) -> Any:
            live.count(self.card.name)
            return map_tensors(batch, lambda tensor: tensor.flip(0))

        return append_to(live.batch_transforms, turn)


class DoubleAccumulate(Change):
    """Linear layers that accumulate in float64."""

    card: ClassVar[Card] = card("gate_double_accumulate", Numerics.ROUNDING, Seam.MODEL)

    def apply(self, live: LiveJob) -> Undo:
        """Replace the forward function of each linear layer."""
        layers = [module for module in live.model.modules() if isinstance(module, nn.Linear)]
        undos = [replace_attribute(layer, "forward", self._forward(live, layer)) for layer in layers]

        def undo() -> None:
            for one in undos:
                one()

        return undo

    def _forward(self, live: LiveJob, layer: nn.Linear) -> Any:
        def forward(inputs: torch.Tensor) -> torch.Tensor:
            live.count(self.card.name)
            found = nn.functional.linear(inputs.double(), layer.weight.double(), layer.bias.double())
            return found.to(inputs.dtype)

        return forward


class ForeachOptimizer(Change):
    """The optimizer over lists of tensors."""

    card: ClassVar[Card] = card("gate_foreach_optimizer", Numerics.ROUNDING, Seam.OPTIMIZER, relieves=Bottleneck.OPTIMIZER)

    def apply(self, live: LiveJob) -> Undo:
        """Enable it in every group."""
        undos = []
        for group in live.optimizer.param_groups:
            old, group["foreach"] = group["foreach"], True
            undos.append((group, old))

        def undo() -> None:
            for group, old in undos:
                group["foreach"] = old

        return undo

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Check that operators over lists ran in the step."""
        seen = sum(count for name, count in trace.ops.items() if name.startswith("_foreach_"))
        return [Check("operators over lists", seen > 0, f"{seen} in one step")]


class Float16WithScaler(Precision):
    """Half precision with a gradient scaler, on this machine's CPU."""

    card: ClassVar[Card] = replace(Precision.card, name="gate_float16_with_scaler")

    def apply(self, live: LiveJob) -> Undo:
        """Enter autocast and scale, starting from the default scale."""
        return scaled(live, torch.amp.GradScaler("cpu"))

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Check as for float16."""
        return Precision(dtype="float16").evidence(live, trace)


def scaled(live: LiveJob, scaler: torch.amp.GradScaler) -> Undo:
    """Enable float16 autocast and a scaler."""
    undo_context = append_to(live.forward_contexts, lambda: torch.autocast("cpu", dtype=torch.float16))
    undo_scaler = replace_attribute(live, "scaler", scaler)

    def undo() -> None:
        undo_scaler()
        undo_context()

    return undo


class OtherShuffle(Change):
    """Samples visited in another random order."""

    card: ClassVar[Card] = card("gate_other_shuffle", Numerics.TRAINING, Seam.LOADER, relieves=Bottleneck.INPUT)

    def apply(self, live: LiveJob) -> Undo:
        """Shuffle with another seed."""
        size, num = live.job.batch_size, live.num_samples or 0

        def order(epoch: int) -> list[list[int]]:
            live.count(self.card.name)
            chosen = epoch_permutation(num, live.seed + 1000, epoch)
            return [chosen[at : at + size] for at in range(0, num, size)]

        return replace_attribute(live, "order", order)
