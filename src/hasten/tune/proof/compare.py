"""Compare two plans: fresh processes in interleaved, randomised ABBA order, read at pre-registered looks.

The unit is a pair of processes with the same seed, hence the same model and data. A pair in which a neighbour took too
much of the machine is run again, and left out if that keeps happening.
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
    ALPHA,
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
from hasten.tune.budget import LEAST_PAIR_UPDATES, LEAST_PAIRS
from hasten.tune.trials.pair import Design, run_arm, run_in_turns, warmup_of
from hasten.tune.trials.samples import Sample
from hasten.tune.trials.trial import TrialSetting

MAX_RETAKES_PER_PAIR = 2
NEIGHBOUR = "a neighbour kept using the machine"
MIN_CLEAN_PAIRS = LEAST_PAIRS
PAIR_MARGIN = 1.1
"""A pair takes as long as the one before it, up to this factor."""


@dataclass(kw_only=True)
class Comparison:
    """What a comparison found. `ratio` above 1 means that B is faster.

    Attributes:
        interval: The t-interval of the ratio; None below two clean pairs.
        verdict: faster, slower, same or undecided.
        why: Why it is undecided, or what the floor was.
        floor: The practical floor and where it came from.
        kind: `confirmation` (fresh processes) or `screening` (resident processes taking turns).
        samples: All samples, spoilt ones too.
        metrics: By arm, the held-out metrics of each pair.
        losses: By arm, the losses of the first pair.
        setup_s: By arm, seconds of compiling and of filling caches in the first pair.
        retaken: Pairs that were run again.
    """

    interval: Interval | None = None
    verdict: Verdict = Verdict.UNDECIDED
    why: str = ""
    floor: Floor = field(default_factory=lambda: Floor(MIN_FLOOR_FRAC, "the smallest that counts"))
    kind: evidence.Method = "confirmation"
    samples: list[Sample] = field(default_factory=list)
    metrics: dict[str, list[dict[str, float]]] = field(default_factory=lambda: {"A": [], "B": []})
    losses: dict[str, list[float]] = field(default_factory=lambda: {"A": [], "B": []})
    setup_s: dict[str, float] = field(default_factory=dict)
    retaken: int = 0

    def times(self, arm: str) -> list[float]:
        """Seconds per item of the clean samples of an arm, by pair; only pairs that are clean in both arms."""
        clean = self._clean_pairs()
        return [sample.seconds_per_item for sample in self.samples if sample.arm == arm and sample.pair in clean]

    def _clean_pairs(self) -> set[int]:
        pairs: dict[int, list[Sample]] = {}
        for sample in self.samples:
            pairs.setdefault(sample.pair, []).append(sample)
        return {pair for pair, both in pairs.items() if not any(sample.spoilt for sample in both)}

    def to_evidence(self) -> evidence.Comparison:
        """As in the evidence file."""
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
        """As JSON."""
        written: dict[str, Any] = schema.write(self.to_evidence())
        return written


def interval_fields(interval: Interval | None) -> dict[str, Any]:
    """An interval as in the evidence file; nothing, of 0 pairs, where there is none."""
    if interval is None:
        return {"ratio": None, "low": None, "high": None, "pairs": 0, "confidence": None}
    return {name: getattr(interval, name) for name in ("ratio", "low", "high", "pairs", "confidence")}


def read_look(comparison: Comparison, look: int, min_floor_frac: float, looks: Sequence[int] = LOOKS) -> None:
    """Read the verdict at a look: interval, floor, one of four outcomes."""
    base, candidate = comparison.times("A"), comparison.times("B")
    if len(base) < min(MIN_CLEAN_PAIRS, looks[0]):
        cause = NEIGHBOUR if any(sample.spoilt for sample in comparison.samples) else "the time was up"
        comparison.why = f"only {len(base)} clean pairs: {cause}"
        return
    alpha = ALPHA * len(LOOKS) / len(looks)
    comparison.interval = paired_interval(base, candidate, look_confidence(look, alpha))
    comparison.floor = aa_floor_frac(base, candidate, minimum=min_floor_frac)
    comparison.verdict = judge(comparison.interval, comparison.floor.frac)
    wide = f"the interval {comparison.interval.low:.3f} to {comparison.interval.high:.3f} leaves it open"
    comparison.why = wide if comparison.verdict is Verdict.UNDECIDED else f"floor {comparison.floor.frac:.1%}"


def compare(
    setting: TrialSetting,
    base: Plan,
    candidate: Plan,
    design: Design,
    *,
    candidate_setting: TrialSetting | None = None,
    on_pair: Callable[[Comparison], None] = lambda _: None,
) -> Comparison:
    """Run the comparison.

    Args:
        setting: What all trials share.
        base: Arm A.
        candidate: Arm B.
        design: How.
        candidate_setting: Another job, or another version of it, for arm B; the same unless given.
        on_pair: Called after each pair, with the comparison so far.

    Raises:
        TrialError: A trial crashed, hung, ran out of memory or lost its loss to NaN.
    """
    comparison = Comparison()
    design = replace(design, warmup=warmup_of(base, candidate))
    order = random.Random(f"hasten-{design.seed}")  # noqa: S311  an experiment's order, no secret
    base_first = order.random() < 0.5
    plans = {"A": (setting, base), "B": (candidate_setting or setting, candidate)}
    for look, wanted in enumerate(design.looks):
        pair = len(comparison.metrics["A"])
        while pair < wanted:
            arms = "AB" if base_first == (pair % 2 == 0) else "BA"
            taken = _run_pair(plans, arms, pair, design, comparison)
            on_pair(comparison)
            pair += 1
            design = shortened(design, taken, design.looks[0] - pair)
            if design.deadline is not None and monotonic() + taken.seconds_of(design.updates) > design.deadline:
                read_look(comparison, look, design.min_floor_frac, design.looks)
                return comparison
        read_look(comparison, look, design.min_floor_frac, design.looks)
        if comparison.verdict is not Verdict.UNDECIDED and _quality_is_clear(comparison, design.quality):
            break
    return comparison


@dataclass(frozen=True, kw_only=True)
class PairTime:
    """What a pair took.

    Attributes:
        seconds: In all, starting and warming up included.
        counted_s: Of them, what grows with the number of updates.
        updates: Of each process.
    """

    seconds: float
    counted_s: float
    updates: int

    def seconds_of(self, updates: int) -> float:
        """What a pair of so many updates takes."""
        return self.seconds + self.counted_s * (updates / self.updates - 1.0)


def shortened(design: Design, taken: PairTime, pairs: int) -> Design:
    """The design with fewer updates to a pair, where `pairs` more like the one just `taken` would end after the deadline.

    What a pair takes is an estimate before the first one. Five short pairs say more than two long ones, and two say nothing.
    """
    if design.deadline is None or pairs < 1:
        return design
    each_s = (design.deadline - monotonic()) / pairs / PAIR_MARGIN
    if taken.seconds_of(design.updates) <= each_s or taken.counted_s <= 0.0:
        return design
    fixed_s = taken.seconds - taken.counted_s
    updates = int((each_s - fixed_s) / taken.counted_s * taken.updates)
    return replace(design, updates=min(max(updates, LEAST_PAIR_UPDATES), design.updates))


def held_out_verdict(comparison: Comparison, quality: Quality) -> NonInferiority:
    """Judge the held-out metric of both arms, paired by seed.

    Raises:
        TrialError: The job's `metric` does not give what its `quality` names.
    """
    for metrics in (*comparison.metrics["A"], *comparison.metrics["B"]):
        if quality.metric not in metrics:
            words = f"quality names the metric {quality.metric!r}, but metric() gave {sorted(metrics)}. Correct one of them."
            raise TrialError(words, kind="raised")
    base, tuned = ([metrics[quality.metric] for metrics in comparison.metrics[arm]] for arm in "AB")
    if quality.direction == "max" and base and not any((*base, *tuned)):
        why = f"{quality.metric} is 0 in every run: models that find nothing yet tell nothing apart"
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
