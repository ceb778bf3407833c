"""Compare two plans with fresh processes in interleaved, randomised ABBA order, with verdicts at pre-registered looks.

The unit is a pair of processes with the same seed and so the same model and data. A pair that other processes disturbed is
repeated, and not counted if the disturbance persists.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any

from hasten.core.errors import TrialError
from hasten.core.job import Quality
from hasten.core.plan import Plan
from hasten.core.stats import (
    LOOKS,
    MIN_FLOOR_FRAC,
    Floor,
    Interval,
    NonInferiority,
    Verdict,
    aa_floor_frac,
    judge,
    look_confidence,
    non_inferior,
    paired_interval,
)
from hasten.report import evidence, schema
from hasten.tune.budget import LEAST_PAIR_UPDATES, LEAST_PAIRS, cheap_updates
from hasten.tune.trials.pair import Design, run_arm, run_in_turns, warmup_of
from hasten.tune.trials.samples import Sample
from hasten.tune.trials.trial import TrialSetting

MAX_RETAKES_PER_PAIR = 2
"""Maximum repetitions of a disturbed pair."""
NEIGHBOUR = "other processes kept using the machine"
MIN_CLEAN_PAIRS = LEAST_PAIRS
PAIR_MARGIN = 1.1
"""Factor up to which a pair is expected to exceed the time of the previous one."""


@dataclass(kw_only=True)
class Comparison:
    """The result of a comparison. A `ratio` above 1 means that B is faster.

    Attributes:
        interval: The t-interval of the ratio; None with fewer than two clean pairs.
        verdict: faster, slower, same or undecided.
        why: Why it is undecided, or the noise floor.
        floor: The noise floor and its basis.
        kind: `confirmation` (fresh processes) or `screening` (resident processes taking turns).
        samples: All samples, including disturbed ones.
        metrics: The held-out metrics of each pair, by arm.
        losses: The losses of the first pair, by arm.
        setup_s: Seconds of compilation and cache filling in the first pair, by arm.
        retaken: Number of pairs that were repeated.
    """

    interval: Interval | None = None
    verdict: Verdict = Verdict.UNDECIDED
    why: str = ""
    floor: Floor = field(default_factory=lambda: Floor(MIN_FLOOR_FRAC, "the default"))
    kind: evidence.Method = "confirmation"
    samples: list[Sample] = field(default_factory=list)
    metrics: dict[str, list[dict[str, float]]] = field(default_factory=lambda: {"A": [], "B": []})
    losses: dict[str, list[float]] = field(default_factory=lambda: {"A": [], "B": []})
    setup_s: dict[str, float] = field(default_factory=dict)
    retaken: int = 0

    def times(self, arm: str) -> list[float]:
        """Return the seconds per item of an arm, by pair, for pairs that are clean in both arms."""
        clean = self._clean_pairs()
        return [sample.seconds_per_item for sample in self.samples if sample.arm == arm and sample.pair in clean]

    def _clean_pairs(self) -> set[int]:
        pairs: dict[int, list[Sample]] = {}
        for sample in self.samples:
            pairs.setdefault(sample.pair, []).append(sample)
        return {pair for pair, both in pairs.items() if not any(sample.spoilt for sample in both)}

    def to_evidence(self) -> evidence.Comparison:
        """Return it as in the evidence file."""
        return evidence.Comparison(
            **interval_fields(self.interval),
            verdict=self.verdict,
            why=self.why,
            floor=self.floor.frac,
            floor_reason=self.floor.reason,
            kind=self.kind,
            retaken=self.retaken,
            samples=tuple(sample.to_evidence() for sample in self.samples),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        written: dict[str, Any] = schema.write(self.to_evidence())
        return written


def interval_fields(interval: Interval | None) -> dict[str, Any]:
    """Return an interval as in the evidence file; 0 pairs and null values without one."""
    if interval is None:
        return {"ratio": None, "low": None, "high": None, "pairs": 0, "confidence": None}
    return {name: getattr(interval, name) for name in ("ratio", "low", "high", "pairs", "confidence")}


def read_look(comparison: Comparison, min_floor_frac: float, looks: Sequence[int] = LOOKS) -> None:
    """Read the verdict at one of the `looks`: interval, noise floor, one of four outcomes."""
    base, candidate = comparison.times("A"), comparison.times("B")
    if len(base) < min(MIN_CLEAN_PAIRS, looks[0]):
        cause = NEIGHBOUR if any(sample.spoilt for sample in comparison.samples) else "the time ran out"
        comparison.why = f"only {len(base)} clean pairs: {cause}"
        return
    comparison.interval = paired_interval(base, candidate, look_confidence(len(looks)))
    comparison.floor = aa_floor_frac(base, candidate, minimum=min_floor_frac)
    comparison.verdict = judge(comparison.interval, comparison.floor.frac)
    wide = f"the interval {comparison.interval.low:.3f} to {comparison.interval.high:.3f} allows more than one verdict"
    comparison.why = wide if comparison.verdict is Verdict.UNDECIDED else f"noise floor {comparison.floor.frac:.1%}"


def compare(
    setting: TrialSetting,
    base: Plan,
    candidate: Plan,
    design: Design,
    *,
    candidate_setting: TrialSetting | None = None,
    on_pair: Callable[[Comparison], None] = lambda _: None,
) -> Comparison:
    """Run a comparison.

    Args:
        setting: Settings that all trials share.
        base: The plan of arm A.
        candidate: The plan of arm B.
        design: How the comparison is run.
        candidate_setting: Another job, or another version of it, for arm B; the same by default.
        on_pair: Called after each pair with the comparison so far.

    Raises:
        TrialError: A trial crashed, hung, ran out of memory, or its loss became NaN.
    """
    comparison = Comparison()
    design = replace(design, warmup=warmup_of(base, candidate))
    order = random.Random(f"hasten-{design.seed}")  # noqa: S311  the order of an experiment, not a secret
    base_first = order.random() < 0.5
    plans = {"A": (setting, base), "B": (candidate_setting or setting, candidate)}
    for wanted in design.looks:
        pair = len(comparison.metrics["A"])
        while pair < wanted:
            arms = "AB" if base_first == (pair % 2 == 0) else "BA"
            taken = _run_pair(plans, arms, pair, design, comparison)
            on_pair(comparison)
            pair += 1
            design = shortened(design, taken, design.looks[0] - pair)
            if design.deadline is not None and monotonic() + taken.seconds_of(design.updates) > design.deadline:
                read_look(comparison, design.min_floor_frac, design.looks)
                return comparison
        read_look(comparison, design.min_floor_frac, design.looks)
        if comparison.verdict is not Verdict.UNDECIDED and _quality_is_clear(comparison, design.quality):
            break
    return comparison


@dataclass(frozen=True, kw_only=True)
class PairTime:
    """The time that a pair took.

    Attributes:
        seconds: Total time, including start and warm-up.
        counted_s: The part of it that grows with the number of updates.
        updates: Updates of each process.
    """

    seconds: float
    counted_s: float
    updates: int

    def seconds_of(self, updates: int) -> float:
        """Return the seconds of a pair with `updates` updates."""
        return self.seconds + self.counted_s * (updates / self.updates - 1.0)


def shortened(design: Design, taken: PairTime, pairs: int) -> Design:
    """Return the design with fewer updates per pair if `pairs` more like the one just `taken` would miss the deadline.

    The time of a pair is only an estimate before the first one. Five short pairs say more than two long ones, which say
    nothing.
    """
    if design.deadline is None or pairs < 1:
        return design
    each_s = (design.deadline - monotonic()) / pairs / PAIR_MARGIN
    if taken.seconds_of(design.updates) <= each_s or taken.counted_s <= 0.0:
        return design
    fixed_s, update_s = taken.seconds - taken.counted_s, taken.counted_s / taken.updates
    updates = max(int((each_s - fixed_s) / update_s), LEAST_PAIR_UPDATES, cheap_updates(fixed_s, update_s))
    return replace(design, updates=min(updates, design.updates))


def held_out_verdict(comparison: Comparison, quality: Quality) -> NonInferiority:
    """Judge the held-out metric of both arms, paired by seed.

    Raises:
        TrialError: The job's `metric` does not return the metric that its `quality` names.
    """
    for metrics in (*comparison.metrics["A"], *comparison.metrics["B"]):
        if quality.metric not in metrics:
            message = f"quality names {quality.metric!r}, but metric() returned {sorted(metrics)}. Change one of them."
            raise TrialError(message, kind="raised")
    base, tuned = ([metrics[quality.metric] for metrics in comparison.metrics[arm]] for arm in "AB")
    if quality.direction == "max" and base and not any((*base, *tuned)):
        why = f"{quality.metric} is 0 in every run: models that detect nothing yet cannot be compared"
        return NonInferiority("undecided", 0.0, math.inf, -math.inf, len(base), why)
    return non_inferior(base, tuned, direction=quality.direction, margin=quality.margin)


def _quality_is_clear(comparison: Comparison, quality: Quality | None) -> bool:
    return quality is None or held_out_verdict(comparison, quality).verdict != "undecided"


def _run_pair(
    plans: dict[str, tuple[TrialSetting, Plan]], arms: str, pair: int, design: Design, comparison: Comparison
) -> PairTime:
    for attempt in range(MAX_RETAKES_PER_PAIR + 1):
        started = monotonic()
        if design.turns > 1:
            taken = run_in_turns(plans, arms, pair, design)
        else:
            taken = {arm: run_arm(*plans[arm], arm, pair, design) for arm in arms}
        clean = not any(outcome.sample.spoilt for outcome in taken.values())
        seconds = monotonic() - started
        if clean or attempt == MAX_RETAKES_PER_PAIR or _late(design):
            break
        comparison.retaken += 1
    for arm, outcome in sorted(taken.items()):
        comparison.samples.append(outcome.sample)
        comparison.metrics[arm].append(outcome.metrics)
        comparison.setup_s.setdefault(arm, outcome.setup_s)
        if pair == 0:
            comparison.losses[arm] = outcome.losses
    counted_s = sum(outcome.sample.seconds + outcome.filling_s for outcome in taken.values())
    return PairTime(seconds=seconds, counted_s=min(counted_s, seconds), updates=design.updates)


def _late(design: Design) -> bool:
    return design.deadline is not None and monotonic() > design.deadline
