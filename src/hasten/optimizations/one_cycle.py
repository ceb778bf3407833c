"""One cycle of the learning rate over the whole run: up to a high peak, then down to nearly nothing.

Relieves:  updates that teach little: a constant rate is too low for the middle of a run and too high for its end.
Numerics:  training: other rates, and other momentum where the optimizer has any.
Limits:    the run must be as long as planned, and its length known; a job that has a schedule of its own keeps it. Judged
           by time to target over whole runs, which a short tuning has no room for.
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
    """The one-cycle policy, in the two phases with cosine annealing that PyTorch has by default.

    Attributes:
        max_lr_factor: The highest learning rate, as a multiple of the job's own.
        pct_start: Share of the run in which the rate rises; between 0 and 1.
    """

    max_lr_factor: float = 3.0
    pct_start: float = 0.3

    card: ClassVar[Card] = Card(
        name="one_cycle",
        summary="the learning rate rises to a high peak and falls to nearly nothing, once over the whole run",
        relieves=Bottleneck.OTHER,
        numerics=Numerics.TRAINING,
        seam=Seam.UPDATE,
        source="Smith and Topin 2017, Super-Convergence; PyTorch documentation, torch.optim.lr_scheduler.OneCycleLR",
        hoped_gain="an order of magnitude faster than standard training, residual networks (https://arxiv.org/abs/1708.07120)",
        prior=0.5,
        claims=frozenset({"schedule"}),
        judged_by=Judge.TIME_TO_TARGET,
        script_advice="it changes what is trained, and a script has no held-out quality to judge that by",
        left_to={
            "lightning": "return the schedule from configure_optimizers",
            "transformers": "TrainingArguments(lr_scheduler_type=...)",
        },
    )

    def __post_init__(self) -> None:
        if not self.max_lr_factor > 0.0:
            raise ValueError(f"max_lr_factor must be greater than 0, not {self.max_lr_factor}")
        if not 0.0 < self.pct_start < 1.0:
            raise ValueError(f"pct_start must lie between 0 and 1, not {self.pct_start}")

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Fit where the rate is constant, the run's length is known and the job says what is not worse."""
        if refused := why_no_schedule(facts):
            return refused
        return Fit.yes(max_gain_frac=0.0, settings=[cls(max_lr_factor=factor) for factor in PEAKS])

    def apply(self, live: LiveJob) -> Undo:
        """Put the cycle in place of the job's schedule."""
        return replace_schedule(live, self.card.name, self._make)

    def _make(self, optimizer: Optimizer, planned: int) -> LRScheduler:
        if self.pct_start * planned <= 1.0:
            raise JobError(f"A run of {planned} updates is too short for one_cycle: take it out of the plan.")
        return _Cycle(
            optimizer,
            max_lr=[group["lr"] * self.max_lr_factor for group in optimizer.param_groups],
            total_steps=planned,
            pct_start=float(self.pct_start),
            # A momentum of 0 is no momentum to cycle: setting one would multiply the length of every step.
            cycle_momentum=all("betas" in group or group.get("momentum") for group in optimizer.param_groups),
        )

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """The traced update ran at the rate that the cycle begins with."""
        return [first_rate(live, trace, _Cycle, lambda group: group["max_lr"])]

    def write_patch(self, script: SourceEdits) -> str:
        """Not written: the number of updates is not in the source."""
        arguments = f"max_lr={self.max_lr_factor:g} * lr, total_steps=updates, pct_start={self.pct_start:g}"
        raise UnwritableError(
            "it needs the number of updates and the script's own rate",
            f"schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, {arguments})",
            "schedule.step()  # after each optimizer.step()",
        )


class _Cycle(OneCycleLR):
    """The cycle; past its end the last rate holds, where PyTorch's raises an error."""

    def step(self, epoch: int | None = None) -> None:
        """Go on to the next update."""
        if self.last_epoch < self.total_steps - 1:
            super().step(epoch)
