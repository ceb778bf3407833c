"""Change the number of samples per optimizer update, and scale the learning rate with it.

Relieves:  other: updates that improve the model little for their cost. The run has fewer and better updates, or more and
           cheaper ones.
Numerics:  training: the run sees the same number of samples in a different number of updates.
Limits:    map-style datasets. Only the learning rate is scaled, not the optimizer's betas or epsilon. The job's schedule is
           recreated for the new number of updates, but step numbers written in it are not scaled. Judged by time to target
           over whole runs, so a short tuning skips it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from hasten.core.card import Bottleneck, Card, Check, Judge, Numerics, StepTrace
from hasten.core.errors import JobError
from hasten.core.facts import Facts
from hasten.core.live import BatchOrder, LiveJob
from hasten.core.optimization import Fit, Optimization
from hasten.core.seams import Seam, Undo, replace_attribute
from hasten.optimizations.parts.schedules import SCALED_BY, restart_schedule, scale_rates

Scaling = Literal["sqrt", "linear", "none"]

FACTORS = (2.0, 4.0, 0.5)
RULES: dict[str, Scaling] = {
    "SGD": "linear", "Adam": "sqrt", "AdamW": "sqrt", "NAdam": "sqrt", "RAdam": "sqrt", "Adamax": "sqrt", "RMSprop": "sqrt",
}  # fmt: skip
"""Scaling that preserves an optimizer's dynamics: Goyal et al. 2017 (SGD), Malladi et al. 2022 (RMSprop, Adam)."""
MIN_UPDATES = 50
"""Smallest number of updates that a run must keep."""
FULL_FRAC = 0.8
"""Share of the memory above which a larger batch is computed in parts."""


@dataclass(frozen=True, kw_only=True)
class OptimizerBatch(Optimization):
    """The number of samples per update.

    Attributes:
        factor: Number of samples per update, as a multiple of the job's own.
        scaling: How the learning rate is scaled: `linear` with the factor, `sqrt` with its square root, or `none`.
        parts: Number of parts in which each batch is computed, so that it fits in memory; 1 computes it whole.
    """

    factor: float = 2.0
    scaling: Scaling = "sqrt"
    parts: int = 1

    card: ClassVar[Card] = Card(
        name="optimizer_batch",
        summary="change the number of samples per optimizer update, and scale the learning rate with it",
        relieves=Bottleneck.OTHER,
        numerics=Numerics.TRAINING,
        seam=Seam.OPTIMIZER,
        source="Goyal et al. 2017 (linear scaling, SGD); Malladi et al. 2022 (square-root scaling, Adam)",
        prior=0.3,
        claims=frozenset({"order"}),
        after=("eight_bit_states", "foreach_optimizer", "fused_optimizer"),
        conflicts=("microbatch",),
        judged_by=Judge.TIME_TO_TARGET,
        script_advice="it changes training, and a script has no held-out quality metric to judge that",
        left_to={
            "lightning": "Trainer(accumulate_grad_batches=...)",
            "transformers": "TrainingArguments(gradient_accumulation_steps=...)",
        },
    )

    def __post_init__(self) -> None:
        if not self.factor > 0.0 or self.factor == 1.0:
            raise ValueError(f"factor must be greater than 0 and not 1, not {self.factor}")
        if self.parts < 1:
            raise ValueError(f"parts must be at least 1, not {self.parts}")

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Applies if samples can be regrouped, a scaling rule is known, and the job defines a quality metric."""
        job = facts.job
        if not job.has_quality:
            return Fit.no("it changes how the model learns, and the job defines no quality metric: set quality")
        if job.num_samples is None:
            return Fit.no("an iterable dataset does not say how many samples it has")
        if job.planned_updates is None:
            return Fit.no("the length of the run is unknown: set num_updates")
        if job.optimizer_class not in RULES:
            return Fit.no(
                f"there is no known rule for scaling the learning rate of {job.optimizer_class} with the batch size"
            )
        settings = [
            cls(factor=factor, scaling=RULES[job.optimizer_class], parts=_parts(facts, factor))
            for factor in FACTORS
            if _leaves_a_run(facts, factor)
        ]
        if not settings:
            return Fit.no(f"no other batch size gives a run of at least {MIN_UPDATES} updates with full batches")
        return Fit.yes(max_gain_frac=0.0, settings=settings)

    @property
    def samples_factor(self) -> float:
        """Number of samples per update, as a multiple of the number without this optimization."""
        return float(self.factor)

    @property
    def rate_factor(self) -> float:
        """Factor by which the learning rate is multiplied."""
        return {"linear": float(self.factor), "sqrt": math.sqrt(self.factor), "none": 1.0}[self.scaling]

    def apply(self, live: LiveJob) -> Undo:
        """Regroup the samples, update the planned number of updates, and scale the learning rate."""
        if live.order is None or live.planned_updates is None:
            raise JobError("optimizer_batch needs a map-style dataset: remove it from the plan.")
        size = live.job.batch_size * self.factor
        if size < 1 or size != int(size):
            raise JobError(
                f"optimizer_batch with factor={self.factor:g} turns batches of {live.job.batch_size} samples into {size:g}, "
                f"which must be a whole number: choose another factor, or remove optimizer_batch from the plan."
            )
        order = _Regrouped(live.order, int(size))
        before, after = (-(-len(batches(0)) // live.job.accumulation) for batches in (live.order, order))
        undos = [
            replace_attribute(live, "order", order),
            replace_attribute(live, "planned_updates", max(round(live.planned_updates * after / before), 1)),
            replace_attribute(live, "micro_parts", self.parts),
            scale_rates(live, self.rate_factor),
        ]

        def undo() -> None:
            for step in reversed(undos):
                step()
            restart_schedule(live)  # for the job's own number of updates

        return undo

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Check that the batch size changed, and that the traced update ran at the scaled learning rate."""
        order, used = live.order, trace.counters.get(SCALED_BY)
        if not isinstance(order, _Regrouped):
            return [Check("samples per batch", passed=False, seen="the default order is active")]
        plain, now = (max(len(batch) for batch in batches(0)) for batches in (order.plain, order))
        rate = "not scaled" if used is None else f"scaled by {used:.3g}"
        return [
            Check("samples per batch", now != plain, f"{now}, default order {plain}"),
            Check("learning rate of an update", used == self.rate_factor, f"{rate}, expected {self.rate_factor:.3g}"),
        ]


def _parts(facts: Facts, factor: float) -> int:
    """Return the number of parts that keeps each part at the old batch size if memory would be short, otherwise 1."""
    limit = facts.memory_limit_bytes
    short = limit > 0 and facts.peak_memory_bytes * factor > FULL_FRAC * limit
    return int(factor) if short and factor > 1.0 else 1


def _leaves_a_run(facts: Facts, factor: float) -> bool:
    job, size = facts.job, facts.job.batch_size * factor
    if size != int(size) or size < 1 or size * job.accumulation > (job.num_samples or 0):
        return False
    return (job.planned_updates or 0) / factor >= MIN_UPDATES


class _Regrouped:
    """The samples of an epoch in the same order, in batches of another size."""

    def __init__(self, plain: BatchOrder, size: int) -> None:
        self.plain, self._size = plain, size

    def __call__(self, epoch: int) -> list[list[int]]:
        samples = [index for batch in self.plain(epoch) for index in batch]
        return [samples[first : first + self._size] for first in range(0, len(samples), self._size)]
