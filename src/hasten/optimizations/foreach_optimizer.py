"""Run the optimizer step on lists of tensors, with one call per operation, instead of one parameter at a time.

Relieves:  optimizer: with many small parameters, there are fewer Python calls and dispatches.
Numerics:  rounding: the same update rule, with some operations in a different order.
Limits:    before the first step only. PyTorch's own optimizer classes, not subclasses of them. On CUDA, PyTorch does it by
           default.
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

WITH_FOREACH: dict[str, type[torch.optim.Optimizer]] = {
    "ASGD": torch.optim.ASGD,
    "Adadelta": torch.optim.Adadelta,
    "Adafactor": torch.optim.Adafactor,
    "Adagrad": torch.optim.Adagrad,
    "Adam": torch.optim.Adam,
    "AdamW": torch.optim.AdamW,
    "Adamax": torch.optim.Adamax,
    "NAdam": torch.optim.NAdam,
    "RAdam": torch.optim.RAdam,
    "RMSprop": torch.optim.RMSprop,
    "Rprop": torch.optim.Rprop,
    "SGD": torch.optim.SGD,
}
UPDATE_OPS = ("_foreach_add",)
"""Name prefixes of an operator that all these update rules use. Clipping and zeroing use other foreach operators."""


@dataclass(frozen=True, kw_only=True)
class ForeachOptimizer(Optimization):
    """The optimizer recreated with `foreach=True`, with the same groups and rates."""

    card: ClassVar[Card] = Card(
        name="foreach_optimizer",
        summary="run the optimizer step on lists of tensors instead of one parameter at a time",
        relieves=Bottleneck.OPTIMIZER,
        numerics=Numerics.ROUNDING,
        seam=Seam.OPTIMIZER,
        source="PyTorch documentation, torch.optim, foreach implementations",
        prior=0.2,
        conflicts=("fused_optimizer",),
        in_scripts=True,
    )

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Applies to classes with a foreach implementation, on devices where PyTorch does not use it by default."""
        if facts.job.optimizer_class not in WITH_FOREACH:
            return Fit.no(
                f"{facts.job.optimizer_class} has no foreach implementation in PyTorch {facts.machine.torch_version}"
            )
        if facts.job.optimizer_fused:
            return Fit.no("the optimizer is fused, which is faster still")
        if facts.job.device == "cuda":
            return Fit.no("PyTorch uses the foreach implementation on CUDA by default")
        if facts.job.num_param_tensors < 2:
            return Fit.no("the model has only one parameter tensor")
        return Fit.yes(max_gain_frac=facts.form_frac("foreach", facts.phase_frac.get("optimizer", 0.0)), settings=[cls()])

    def apply(self, live: LiveJob) -> Undo:
        """Recreate the optimizer with its foreach implementation."""
        return remake_optimizer(live, self.card.name, WITH_FOREACH, {"foreach": True})

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Check that operators on lists of tensors ran the update."""
        seen = sum(count for op, count in trace.ops.items() if op.startswith(UPDATE_OPS))
        return [Check("foreach operators in the update", seen > 0, f"{seen} in one step")]

    def by_hand(self) -> tuple[str, ...]:
        """Return the optimizer argument."""
        return ("torch.optim.NAME(..., foreach=True)",)

    def write_patch(self, script: SourceEdits) -> str:
        """Set `foreach`, and unset `fused`, which PyTorch does not allow together with it."""
        optimizer = script.optimizer()
        if optimizer.name not in WITH_FOREACH:
            raise NothingToWriteError(f"{optimizer.name} ({optimizer.place}) has no foreach implementation")
        return optimizer.set({"foreach": "True"}, where_given={"fused": "False"})
