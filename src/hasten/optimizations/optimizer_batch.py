"""More samples per optimizer update, or fewer, with the learning rate scaled to it and the same samples in the run.

Relieves:  updates that teach little for what they cost: fewer and better ones, or more and cheaper ones.
Numerics:  training: other updates. The run sees the same number of samples, so it has other many updates.
Limits:    map-style datasets. Only the learning rate is scaled, not the optimizer's betas or epsilon. A schedule of the
           job's is made anew for the new number of updates; steps that are written into it are not. Judged by time to
           target over whole runs, which a short tuning has no room for.
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
"""Which scaling keeps the dynamics of which optimizer: Goyal et al. 2017 (SGD), Malladi et al. 2022 (RMSprop, Adam)."""
MIN_UPDATES = 50
"""A run of fewer updates is no run of the same kind."""
FULL_FRAC = 0.8
"""Where a larger batch would take more than this share of the memory, it is computed in parts."""


@dataclass(frozen=True, kw_only=True)
class OptimizerBatch(Optimization):
    """Another number of samples per update.

    Attributes:
        factor: Samples of an update, as a multiple of the job's own.
        scaling: How the learning rate follows: `linear` with the factor, `sqrt` with its root, or `none`.
        parts: Pieces that each batch is computed in, so that memory holds it; 1 computes it whole.
    """

    factor: float = 2.0
    scaling: Scaling = "sqrt"
    parts: int = 1

    card: ClassVar[Card] = Card(
        name="optimizer_batch",
        summary="another number of samples per optimizer update, with the learning rate scaled to it",
        relieves=Bottleneck.OTHER,
        numerics=Numerics.TRAINING,
        seam=Seam.OPTIMIZER,
        source="Goyal et al. 2017 (linear scaling, SGD); Malladi et al. 2022 (square-root scaling, Adam)",
        prior=0.3,
        claims=frozenset({"order"}),
        after=("eight_bit_states", "foreach_optimizer", "fused_optimizer"),
        conflicts=("microbatch",),
        judged_by=Judge.TIME_TO_TARGET,
        script_advice="it changes what is trained, and a script has no held-out quality to judge that by",
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
        """Fit where the samples can be regrouped, a scaling rule is known, and the job says what is not worse."""
        job = facts.job
        if not job.has_quality:
            return Fit.no("it changes how the model learns, and the job does not say what is not worse: set quality")
        if job.num_samples is None:
            return Fit.no("an iterable dataset says neither how many samples it has nor how many updates they make")
        if job.planned_updates is None:
            return Fit.no("how long the run is, is not known: set num_updates")
        if job.optimizer_class not in RULES:
            return Fit.no(f"no rule is known for how the learning rate of {job.optimizer_class} follows the batch")
        settings = [
            cls(factor=factor, scaling=RULES[job.optimizer_class], parts=_parts(facts, factor))
            for factor in FACTORS
            if _leaves_a_run(facts, factor)
        ]
        if not settings:
            return Fit.no(
                f"neither more nor fewer samples per update leave a run of at least {MIN_UPDATES} updates with whole batches"
            )
        return Fit.yes(max_gain_frac=0.0, settings=settings)

    @property
    def samples_factor(self) -> float:
        """Samples of one update, as a multiple of those without it."""
        return float(self.factor)

    @property
    def rate_factor(self) -> float:
        """What the learning rate is multiplied by."""
        return {"linear": float(self.factor), "sqrt": math.sqrt(self.factor), "none": 1.0}[self.scaling]

    def apply(self, live: LiveJob) -> Undo:
        """Regroup the samples, plan the updates anew, and scale the learning rate."""
        if live.order is None or live.planned_updates is None:
            raise JobError("optimizer_batch needs a map-style dataset: take it out of the plan.")
        size = live.job.batch_size * self.factor
        if size < 1 or size != int(size):
            raise JobError(
                f"optimizer_batch makes batches of {size:g} samples out of {live.job.batch_size}, and that must be a whole "
                f"number: choose another factor, or take it out of the plan."
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
            restart_schedule(live)  # for as many updates as the job has

        return undo

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Batches hold another number of samples, and the traced update ran at the scaled rate."""
        order, used = live.order, trace.counters.get(SCALED_BY)
        if not isinstance(order, _Regrouped):
            return [Check("samples per batch", passed=False, seen="the plain order is in force")]
        plain, now = (max(len(batch) for batch in batches(0)) for batches in (order.plain, order))
        rate = "as it was" if used is None else f"times {used:.3g}"
        return [
            Check("samples per batch", now != plain, f"{now}, plain order {plain}"),
            Check("learning rate of an update", used == self.rate_factor, f"{rate}, wanted times {self.rate_factor:.3g}"),
        ]


def _parts(facts: Facts, factor: float) -> int:
    """Pieces to compute a batch in: as many as keep a piece at its old size, where memory would become short."""
    limit = facts.memory_limit_bytes
    short = limit > 0 and facts.peak_memory_bytes * factor > FULL_FRAC * limit
    return int(factor) if short and factor > 1.0 else 1


def _leaves_a_run(facts: Facts, factor: float) -> bool:
    job, size = facts.job, facts.job.batch_size * factor
    if size != int(size) or size < 1 or size * job.accumulation > (job.num_samples or 0):
        return False
    return (job.planned_updates or 0) / factor >= MIN_UPDATES


class _Regrouped:
    """The samples of an epoch in their order, in batches of another size."""

    def __init__(self, plain: BatchOrder, size: int) -> None:
        self.plain, self._size = plain, size

    def __call__(self, epoch: int) -> list[list[int]]:
        samples = [index for batch in self.plain(epoch) for index in batch]
        return [samples[at : at + self._size] for at in range(0, len(samples), self._size)]
