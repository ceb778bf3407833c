"""Run the optimizer step as one fused kernel per parameter group.

Relieves:  optimizer: many short kernels after the backward pass become one per group.
Numerics:  rounding: the same update rule, with operations in a different order.
Limits:    before the first step only. torch's Adam, AdamW, SGD and Adagrad, not subclasses of them.
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
"""Name prefixes of the fused optimizer operators. Other operators, such as `_fused_sdp_choice`, also begin with `_fused`."""


@dataclass(frozen=True, kw_only=True)
class FusedOptimizer(Optimization):
    """The optimizer recreated with `fused=True`, with the same groups and rates."""

    card: ClassVar[Card] = Card(
        name="fused_optimizer",
        summary="run the optimizer step as one fused kernel per parameter group",
        relieves=Bottleneck.OPTIMIZER,
        numerics=Numerics.ROUNDING,
        seam=Seam.OPTIMIZER,
        source="PyTorch documentation, torch.optim.AdamW, `fused`",
        hoped_gain=(
            "2.64 % on average over parallelism settings of Llama 8B, 1.63 to 3.62 % "
            "(https://github.com/pytorch/torchtitan/pull/881)"
        ),
        prior=0.5,
        in_scripts=True,
    )

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Applies to classes with a fused kernel that is not in use. The optimizer step bounds what it saves."""
        if facts.job.optimizer_class not in FUSABLE:
            return Fit.no(f"{facts.job.optimizer_class} has no fused kernel in PyTorch {facts.machine.torch_version}")
        if facts.job.optimizer_fused:
            return Fit.no("the optimizer is already fused")
        return Fit.yes(max_gain_frac=facts.form_frac("fused", facts.phase_frac.get("optimizer", 0.0)), settings=[cls()])

    def apply(self, live: LiveJob) -> Undo:
        """Recreate the optimizer with its fused kernel."""
        return remake_optimizer(live, self.card.name, FUSABLE, {"fused": True, "foreach": False})

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Check that the fused kernel ran."""
        seen = sum(count for op, count in trace.ops.items() if op.startswith(FUSED_OPS))
        return [Check("fused optimizer kernels", seen > 0, f"{seen} in one step")]

    def by_hand(self) -> tuple[str, ...]:
        """Return the optimizer argument."""
        return ("torch.optim.NAME(..., fused=True)",)

    def write_patch(self, script: SourceEdits) -> str:
        """Set `fused`, and unset `foreach`, which PyTorch does not allow together with it."""
        optimizer = script.optimizer()
        if optimizer.name not in FUSABLE:
            raise NothingToWriteError(f"{optimizer.name} ({optimizer.place}) has no fused implementation")
        return optimizer.set({"fused": "True"}, where_given={"foreach": "False"})

    def framework_arguments(self) -> dict[str, str]:
        """Return the argument of the Trainer, which creates the optimizer."""
        return {"transformers.TrainingArguments": 'optim="adamw_torch_fused"'}
