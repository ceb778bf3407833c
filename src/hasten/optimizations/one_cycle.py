"""Use one learning-rate cycle over the whole run: up to a high peak, then down to nearly zero.

Relieves:  other: updates that improve the model little. A constant rate is too low for the middle of a run and too high for
           its end.
Numerics:  training: other learning rates, and other momentum if the optimizer has momentum.
Limits:    the length of the run must be known, and the run must not be cut short. A job with its own schedule keeps it.
           Judged by time to target over whole runs, so a short tuning skips it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR

from hasten.core.card import Bottleneck, Card, Check, Judge, Numerics, StepTrace
from hasten.core.errors import JobError
from hasten.core.facts import Facts
from hasten.core.live import LiveJob
from hasten.core.optimization import Fit, Optimization
from hasten.core.seams import Seam, Undo
from hasten.core.source_edits import SourceEdits, UnwritableError
from hasten.optimizations.parts.schedules import first_rate, replace_schedule, why_no_schedule

PEAKS = (3.0, 10.0)


@dataclass(frozen=True, kw_only=True)
class OneCycle(Optimization):
    """The one-cycle policy with PyTorch's defaults: two phases with cosine annealing.

    Attributes:
        max_lr_factor: Highest learning rate, as a multiple of the job's own.
        pct_start: Share of the run in which the rate rises, between 0 and 1.
    """

    max_lr_factor: float = 3.0
    pct_start: float = 0.3

    card: ClassVar[Card] = Card(
        name="one_cycle",
        summary="raise the learning rate to a high peak and lower it to nearly zero, once over the whole run",
        relieves=Bottleneck.OTHER,
        numerics=Numerics.TRAINING,
        seam=Seam.UPDATE,
        source="Smith and Topin 2017, Super-Convergence; PyTorch documentation, torch.optim.lr_scheduler.OneCycleLR",
        hoped_gain="residual networks train an order of magnitude faster (https://arxiv.org/abs/1708.07120)",
        prior=0.5,
        claims=frozenset({"schedule"}),
        judged_by=Judge.TIME_TO_TARGET,
        script_advice="it changes training, and a script has no held-out quality metric to judge that",
        left_to={
            "lightning": "return the schedule from configure_optimizers",
            "transformers": "TrainingArguments(lr_scheduler_type=...)",
        },
    )

    def __post_init__(self) -> None:
        if not self.max_lr_factor > 0.0:
            raise ValueError(f"max_lr_factor must be greater than 0, not {self.max_lr_factor}")
        if not 0.0 < self.pct_start < 1.0:
            raise ValueError(f"pct_start must be between 0 and 1, not {self.pct_start}")

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Applies if the rate is constant, the length of the run is known, and the job defines a quality metric."""
        if refused := why_no_schedule(facts):
            return refused
        return Fit.yes(max_gain_frac=0.0, settings=[cls(max_lr_factor=factor) for factor in PEAKS])

    def apply(self, live: LiveJob) -> Undo:
        """Replace the job's schedule by the cycle."""
        return replace_schedule(live, self.card.name, self._make)

    def _make(self, optimizer: Optimizer, planned: int) -> LRScheduler:
        if self.pct_start * planned <= 1.0:
            raise JobError(f"A run of {planned} updates is too short for one_cycle: remove it from the plan.")
        return _Cycle(
            optimizer,
            max_lr=[group["lr"] * self.max_lr_factor for group in optimizer.param_groups],
            total_steps=planned,
            pct_start=float(self.pct_start),
            # With a momentum of 0 there is nothing to cycle: setting one would lengthen every step.
            cycle_momentum=all("betas" in group or group.get("momentum") for group in optimizer.param_groups),
        )

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Check that the traced update ran at the initial rate of the cycle."""
        return [first_rate(live, trace, _Cycle, lambda group: group["max_lr"])]

    def write_patch(self, script: SourceEdits) -> str:
        """Raise UnwritableError: the source does not say how many updates the run has."""
        arguments = f"max_lr={self.max_lr_factor:g} * lr, total_steps=updates, pct_start={self.pct_start:g}"
        raise UnwritableError(
            "it needs the number of updates and the script's learning rate",
            f"schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, {arguments})",
            "schedule.step()  # after each optimizer.step()",
        )


class _Cycle(OneCycleLR):
    """The cycle. After its end it keeps the last rate, where PyTorch's class raises an error."""

    def step(self, epoch: int | None = None) -> None:
        """Advance to the next update."""
        if self.last_epoch < self.total_steps - 1:
            super().step(epoch)
