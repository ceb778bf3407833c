"""Warm up the learning rate linearly, then lower it along a half cosine, over the whole run.

Relieves:  other: updates that improve the model little. A constant rate is too high for the end of a run.
Numerics:  training: other learning rates.
Limits:    the length of the run must be known, and the run must not be cut short. A job with its own schedule keeps it.
           Judged by time to target over whole runs, so a short tuning skips it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from hasten.core.card import Bottleneck, Card, Check, Judge, Numerics, StepTrace
from hasten.core.facts import Facts
from hasten.core.live import LiveJob
from hasten.core.optimization import Fit, Optimization
from hasten.core.seams import Seam, Undo
from hasten.core.source_edits import SourceEdits, UnwritableError
from hasten.optimizations.parts.schedules import first_rate, replace_schedule, why_no_schedule

PEAKS = (1.0, 2.0)


@dataclass(frozen=True, kw_only=True)
class WarmupCosine(Optimization):
    """Linear warm-up and cosine decay without restarts.

    Attributes:
        warmup_frac: Share of the run in which the rate rises; 0 is off.
        final_frac: Last learning rate, as a share of the highest.
        peak_factor: Highest learning rate, as a multiple of the job's own.
    """

    warmup_frac: float = 0.05
    final_frac: float = 0.0
    peak_factor: float = 1.0

    card: ClassVar[Card] = Card(
        name="warmup_cosine",
        summary="warm up the learning rate, then lower it along a cosine, over the whole run",
        relieves=Bottleneck.OTHER,
        numerics=Numerics.TRAINING,
        seam=Seam.UPDATE,
        source="Goyal et al. 2017, section 2.2 (warm-up); Loshchilov and Hutter 2016, SGDR (cosine)",
        prior=0.4,
        claims=frozenset({"schedule"}),
        judged_by=Judge.TIME_TO_TARGET,
        script_advice="it changes training, and a script has no held-out quality metric to judge that",
        left_to={
            "lightning": "return the schedule from configure_optimizers",
            "transformers": 'TrainingArguments(lr_scheduler_type="cosine", warmup_steps=...)',
        },
    )

    def __post_init__(self) -> None:
        if not 0.0 <= self.warmup_frac < 1.0:
            raise ValueError(f"warmup_frac must be at least 0 and below 1, not {self.warmup_frac}")
        if not 0.0 <= self.final_frac <= 1.0:
            raise ValueError(f"final_frac must be between 0 and 1, not {self.final_frac}")
        if not self.peak_factor > 0.0:
            raise ValueError(f"peak_factor must be greater than 0, not {self.peak_factor}")

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Applies if the rate is constant, the length of the run is known, and the job defines a quality metric."""
        if refused := why_no_schedule(facts):
            return refused
        return Fit.yes(max_gain_frac=0.0, settings=[cls(peak_factor=factor) for factor in PEAKS])

    def factor(self, update: int, planned: int) -> float:
        """Return the rate of an update, counted from 0, as a multiple of the job's own. After the end it is constant."""
        warm = round(self.warmup_frac * planned)
        if update < warm:
            return self.peak_factor * (update + 1) / warm
        done = min((update - warm) / max(planned - 1 - warm, 1), 1.0)
        return self.peak_factor * (self.final_frac + (1.0 - self.final_frac) * 0.5 * (1.0 + math.cos(math.pi * done)))

    def apply(self, live: LiveJob) -> Undo:
        """Replace the job's schedule."""
        return replace_schedule(live, self.card.name, self._make)

    def _make(self, optimizer: Optimizer, planned: int) -> LRScheduler:
        return _Schedule(optimizer, lambda update: self.factor(update, planned))

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Check that the traced update ran at the initial rate of the schedule."""
        return [first_rate(live, trace, _Schedule, lambda group: group["initial_lr"] * self.peak_factor)]

    def write_patch(self, script: SourceEdits) -> str:
        """Raise UnwritableError: the source does not say how many updates the run has."""
        schedules = "torch.optim.lr_scheduler"
        raise UnwritableError(
            "it needs the number of updates and the script's learning rate",
            f"warmup = {schedules}.LinearLR(optimizer, 1e-3, total_iters=int({self.warmup_frac:g} * updates))",
            f"cosine = {schedules}.CosineAnnealingLR(optimizer, updates, eta_min={self.final_frac:g} * lr)",
            f"# combine them with SequentialLR, for an optimizer whose learning rate is {self.peak_factor:g} * lr",
        )


class _Schedule(LambdaLR):
    """Warm-up and cosine decay."""
