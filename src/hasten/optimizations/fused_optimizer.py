"""Run the optimizer step as one fused kernel per parameter group.

Relieves:  optimizer-bound steps: many short kernels after backward.
Numerics:  rounding: the same update rule, another order of operations.
Limits:    before the first step only; Adam, AdamW, SGD, Adagrad themselves, not classes derived from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from hasten.core.card import Bottleneck, Card, Check, Numerics, StepTrace
from hasten.core.facts import Facts
from hasten.core.live import LiveJob
from hasten.core.optimization import Fit, Optimization
from hasten.core.seams import Seam, Undo
from hasten.core.source_edits import NothingToWriteError, SourceEdits
from hasten.optimizations.parts.remake import remake_optimizer

FUSABLE: dict[str, type[torch.optim.Optimizer]] = {
    "Adam": torch.optim.Adam,
    "AdamW": torch.optim.AdamW,
    "SGD": torch.optim.SGD,
    "Adagrad": torch.optim.Adagrad,
}
FUSED_OPS = ("_fused_adam", "_fused_sgd", "_fused_adagrad")
"""Begin the names of the fused operators; `_fused_sdp_choice`, for one, is another thing."""


@dataclass(frozen=True, kw_only=True)
class FusedOptimizer(Optimization):
    """The optimizer made anew with `fused=True`, its groups and rates kept."""

    card: ClassVar[Card] = Card(
        name="fused_optimizer",
        summary="the optimizer step as one fused kernel per parameter group",
        relieves=Bottleneck.OPTIMIZER,
        numerics=Numerics.ROUNDING,
        seam=Seam.OPTIMIZER,
        source="PyTorch documentation, torch.optim.AdamW, `fused`",
        hoped_gain=(
            "2.64 % on average over the parallelisms of Llama 8B, 1.63 to 3.62 % "
            "(https://github.com/pytorch/torchtitan/pull/881)"
        ),
        prior=0.5,
        in_scripts=True,
    )

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Fit for a class with a fused kernel that does not use it yet; its step alone tells what it saves."""
        if facts.job.optimizer_class not in FUSABLE:
            return Fit.no(f"{facts.job.optimizer_class} has no fused kernel in PyTorch {facts.machine.torch_version}")
        if facts.job.optimizer_fused:
            return Fit.no("the optimizer is fused already")
        return Fit.yes(max_gain_frac=facts.form_frac("fused", facts.phase_frac.get("optimizer", 0.0)), settings=[cls()])

    def apply(self, live: LiveJob) -> Undo:
        """Make the same optimizer again, fused."""
        return remake_optimizer(live, self.card.name, FUSABLE, {"fused": True, "foreach": False})

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """The fused kernel ran."""
        seen = sum(count for op, count in trace.ops.items() if op.startswith(FUSED_OPS))
        return [Check("fused optimizer kernels", seen > 0, f"{seen} in one step")]

    def by_hand(self) -> tuple[str, ...]:
        """The optimizer's argument."""
        return ("torch.optim.NAME(..., fused=True)",)

    def write_patch(self, script: SourceEdits) -> str:
        """Set `fused`; PyTorch refuses it together with `foreach`."""
        optimizer = script.optimizer()
        if optimizer.name not in FUSABLE:
            raise NothingToWriteError(f"{optimizer.name} ({optimizer.place}) has no such form")
        return optimizer.set({"fused": "True"}, where_given={"foreach": "False"})

    def framework_arguments(self) -> dict[str, str]:
        """The Trainer makes the optimizer."""
        return {"transformers.TrainingArguments": 'optim="adamw_torch_fused"'}
