"""Run the optimizer step as one fused kernel per parameter group.

Relieves:  optimizer-bound steps: many short kernels after backward.
Numerics:  rounding: the same update rule, another order of operations.
Limits:    before the first step only; Adam, AdamW, SGD, Adagrad themselves, not classes derived from them.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from upshift.core.errors import JobError
from upshift.core.facts import Facts
from upshift.core.live import LiveJob, Seam, Undo
from upshift.core.optimization import Bottleneck, Card, Check, Fit, Numerics, Optimization, StepTrace

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
        prior=0.5,
    )

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Fit for a class with a fused kernel that does not use it yet; at most the optimizer's share can be saved."""
        if facts.job.optimizer_class not in FUSABLE:
            return Fit.no(f"{facts.job.optimizer_class} has no fused kernel in PyTorch {facts.machine.torch_version}")
        if facts.job.optimizer_fused:
            return Fit.no("the optimizer is fused already")
        return Fit.yes(max_gain_frac=facts.phase_frac.get("optimizer", 0.0), settings=[cls()])

    def apply(self, live: LiveJob) -> Undo:
        """Make the same optimizer again, fused."""
        old = live.optimizer
        kind = type(old)
        if FUSABLE.get(kind.__name__) is not kind:
            raise JobError(f"{kind.__name__} has no fused kernel: take fused_optimizer out of the plan.")
        if any(_has_stepped(kept) for kept in old.state.values()):
            raise JobError("The optimizer has stepped already: fused_optimizer must be applied before the first update.")
        groups = [{**group, "fused": True, "foreach": False} for group in old.param_groups]
        accepted = inspect.signature(kind).parameters
        defaults = {name: value for name, value in old.defaults.items() if name in accepted}
        live.optimizer = kind(groups, **{**defaults, "fused": True, "foreach": False})

        def undo() -> None:
            live.optimizer = old
            live.rebuild_schedule()

        return undo

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """The fused kernel ran."""
        seen = sum(count for op, count in trace.ops.items() if op.startswith(FUSED_OPS))
        return [Check("fused optimizer kernels", seen > 0, f"{seen} in one step")]


def _has_stepped(kept: Any) -> bool:
    """Whether a parameter's state comes from a step; Adagrad's is there from the start, at step 0."""
    return bool(kept) and float(kept.get("step", 1)) > 0
