"""Run the optimizer step on lists of tensors, one call per operation, instead of one parameter at a time.

Relieves:  optimizer-bound steps of many small parameters: fewer Python calls and dispatches.
Numerics:  rounding: the same update rule; some steps of it are done in another order.
Limits:    before the first step only; PyTorch's own classes, not those derived from them; on CUDA PyTorch does it anyway.
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
"""Begin the names of operators that each of these rules uses; clipping and zeroing have foreach operators of their own."""


@dataclass(frozen=True, kw_only=True)
class ForeachOptimizer(Optimization):
    """The optimizer made anew with `foreach=True`, its groups and rates kept."""

    card: ClassVar[Card] = Card(
        name="foreach_optimizer",
        summary="the optimizer step on lists of tensors, not one parameter at a time",
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
        """Fit for a class with a foreach form, on devices where PyTorch does not choose it by itself."""
        if facts.job.optimizer_class not in WITH_FOREACH:
            return Fit.no(f"{facts.job.optimizer_class} has no foreach form in PyTorch {facts.machine.torch_version}")
        if facts.job.optimizer_fused:
            return Fit.no("the optimizer is fused, which goes further")
        if facts.job.device == "cuda":
            return Fit.no("PyTorch chooses the foreach form on CUDA by itself")
        if facts.job.num_param_tensors < 2:
            return Fit.no("there is one parameter tensor: no list to work on")
        return Fit.yes(max_gain_frac=facts.form_frac("foreach", facts.phase_frac.get("optimizer", 0.0)), settings=[cls()])

    def apply(self, live: LiveJob) -> Undo:
        """Make the same optimizer again, in its foreach form."""
        return remake_optimizer(live, self.card.name, WITH_FOREACH, {"foreach": True})

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Operators on lists of tensors did the update."""
        seen = sum(count for op, count in trace.ops.items() if op.startswith(UPDATE_OPS))
        return [Check("foreach operators of the update", seen > 0, f"{seen} in one step")]

    def by_hand(self) -> tuple[str, ...]:
        """The optimizer's argument."""
        return ("torch.optim.NAME(..., foreach=True)",)

    def write_patch(self, script: SourceEdits) -> str:
        """Set `foreach`; PyTorch refuses it together with `fused`."""
        optimizer = script.optimizer()
        if optimizer.name not in WITH_FOREACH:
            raise NothingToWriteError(f"{optimizer.name} ({optimizer.place}) has no such form")
        return optimizer.set({"foreach": "True"}, where_given={"fused": "False"})
