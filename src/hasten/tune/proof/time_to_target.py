"""Time to target: how soon does a plan reach the held-out metric that the base reaches?

If a change makes an update teach more or less (schedule, batch size), the time of an update says nothing. What counts is
goodput, throughput times statistical efficiency (Qiao et al. 2021, Pollux), measured as the training time until the held-out
metric reaches a target (as in MLPerf). The rules are the same for both arms of a pair:

    smoothing  a running median of three measurements, so that a single lucky or unlucky measurement has no effect; the first
               is kept (no training precedes it), the last is the mean of the last two
    target     the median of the base's smoothed curve over the last quarter of its measurements. The last value would be one
               noisy measurement, and the best an extreme of several: an equally good arm reaches the other's best in only
               half of the pairs. The median is a level that the base keeps, so both arms can reach it
    time       training seconds (without validation) at the first crossing of the smoothed curve, linearly interpolated
               between two measurements

The first crossing does not show a curve that falls behind the target again. Two rules guard against that: the median needs
two of three measurements beyond the target, and the metric at the end must not be worse by the job's margin.

An arm that never reaches the target is censored. The time of its whole run is used, which is too short, so the ratio is too
good. Only the verdicts `slower` and `undecided` may be based on it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from hasten.core.job import Quality
from hasten.core.stats import (
    LOOKS,
    Floor,
    Interval,
    NonInferiority,
    Verdict,
    judge,
    look_confidence,
    non_inferior,
    paired_interval,
)
from hasten.report import evidence, schema
from hasten.tune.proof.compare import interval_fields

MIN_PAIRS = 3
"""Minimum number of clean pairs for an interval."""
NO_MEASUREMENT = "the base run ends without a finite metric"
REACHED_AT_ONCE = "the target is reached before the first update: the metric does not show the progress of training"


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The held-out metric of one whole run.

    Attributes:
        updates: Updates done at each measurement; the first is 0.
        seconds: Training seconds at each measurement, without validation.
        metric: The measured values.
    """

    updates: tuple[int, ...]
    seconds: tuple[float, ...]
    metric: tuple[float, ...]

    def rows(self) -> tuple[tuple[float, float, float], ...]:
        """Return it as in the evidence file: update, seconds and metric of each measurement."""
        return tuple((float(update), s, m) for update, s, m in zip(self.updates, self.seconds, self.metric, strict=True))


@dataclass(frozen=True, kw_only=True)
class WholeRun:
    """One arm of a pair, trained to its end.

    Attributes:
        arm: `A` (base) or `B` (candidate).
        pair: Number of its pair.
        curve: Its held-out metric.
        items: Number of the job's samples that were trained.
        setup_s: Seconds of warm-up (compilation), not part of the curve.
        foreign_cpu_frac: Share of the machine that other processes used; None if unknown.
        spoilt: Whether other processes used too much of the machine, so that its times are not counted.
        seconds_to_target: Seconds to the pair's target; those of the whole run if it was not reached, None without a target.
        reached: Whether the target was reached.
    """

    arm: Literal["A", "B"]
    pair: int
    curve: Curve
    items: int
    setup_s: float = 0.0
    foreign_cpu_frac: float | None = None
    spoilt: bool = False
    seconds_to_target: float | None = None
    reached: bool = False

    def to_evidence(self) -> evidence.Sample:
        """Return it as a sample of the evidence file."""
        seconds = self.curve.seconds[-1]
        return evidence.Sample(
            arm=self.arm,
            pair=self.pair,
            seconds_per_item=seconds / max(self.items, 1),
            seconds=seconds,
            items=self.items,
            foreign_cpu_frac=self.foreign_cpu_frac,
            spoilt=self.spoilt,
            setup_seconds=self.setup_s,
            seconds_to_target=self.seconds_to_target,
            reached=self.reached,
            curve=self.curve.rows(),
        )


@dataclass(kw_only=True)
class TargetComparison:
    """The result of a comparison by time to target. A ratio above 1 means that B reaches the target sooner.

    Attributes:
        quality: The held-out metric and its margin.
        floor: The smallest difference that counts, and its basis.
        interval: The t-interval of the ratio; None with fewer than `MIN_PAIRS` clean pairs.
        verdict: faster, slower, same or undecided.
        why: The reason of the verdict.
        held_out: Whether B is no worse at the end; None before the first look.
        runs: Every run, including disturbed ones.
        targets: The target of each pair, in the metric's units.
        retaken: Number of pairs that were repeated.
    """

    quality: Quality
    floor: Floor
    interval: Interval | None = None
    verdict: Verdict = Verdict.UNDECIDED
    why: str = ""
    held_out: NonInferiority | None = None
    runs: list[WholeRun] = field(default_factory=list)
    targets: list[float] = field(default_factory=list)
    retaken: int = 0

    @property
    def pairs(self) -> int:
        """Number of pairs, including disturbed ones."""
        return len(self.targets)

    @property
    def missed(self) -> int:
        """Number of pairs in which B never reached the target."""
        return sum(run.arm == "B" and not run.reached for run in self.runs)

    @property
    def hopeless(self) -> bool:
        """Whether no further pair can make it `faster`; False before there is an interval."""
        worse = self.pairs >= MIN_PAIRS and judge_ends(self).verdict == "worse"
        return self.pairs >= MIN_PAIRS and (self.missed > 0 or worse)

    def add(self, base: WholeRun, candidate: WholeRun) -> None:
        """Add a pair: compute its target, and when each arm reached it."""
        target, times = pair_times(base.curve, candidate.curve, self.quality.direction)
        self.targets.append(target)
        for run, seconds in zip((base, candidate), times, strict=True):
            known = run.curve.seconds[-1] if seconds is None else seconds
            to_target = known if math.isfinite(target) else None
            self.runs.append(replace(run, seconds_to_target=to_target, reached=seconds is not None))

    def times(self, arm: str) -> list[float]:
        """Return the seconds to target of an arm, by pair, for pairs that have a target and are clean in both arms."""
        bad = {run.pair for run in self.runs if run.spoilt or run.seconds_to_target is None}
        return [float(run.seconds_to_target or 0.0) for run in self.runs if run.arm == arm and run.pair not in bad]

    def ends(self, arm: str) -> list[float]:
        """Return the metric at the end of each run of an arm, by pair."""
        return [run.curve.metric[-1] for run in self.runs if run.arm == arm]

    def to_evidence(self) -> evidence.Comparison:
        """Return it as in the evidence file."""
        held_out = self.held_out
        return evidence.Comparison(
            **interval_fields(self.interval),
            verdict=self.verdict,
            why=self.why,
            floor=self.floor.frac,
            floor_reason=self.floor.reason,
            kind="time_to_target",
            retaken=self.retaken,
            metric=self.quality.metric,
            targets=tuple(self.targets),
            missed=self.missed,
            held_out=evidence.HeldOut(verdict=held_out.verdict, why=held_out.why) if held_out else None,
            samples=tuple(run.to_evidence() for run in self.runs),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        written: dict[str, Any] = schema.write(self.to_evidence())
        return written


def pair_words(comparison: TargetComparison) -> str:
    """Return a message about the last pair of a comparison."""
    base, candidate = sorted(comparison.runs[-2:], key=lambda run: run.arm)
    if base.seconds_to_target is None or candidate.seconds_to_target is None:
        return f"pair {comparison.pairs}: no target"
    reached = "" if candidate.reached else ", never reached"
    times = f"{base.seconds_to_target:.3g} s and {candidate.seconds_to_target:.3g} s"
    return f"pair {comparison.pairs}: {times} to target{reached}"


def smoothed(metric: Sequence[float], direction: Literal["min", "max"]) -> list[float]:
    """Return a curve as harm (lower is better, infinite if not finite), smoothed by a running median of three."""
    sign = 1.0 if direction == "min" else -1.0
    harm = [sign * value if math.isfinite(value) else math.inf for value in metric]
    inner = [statistics.median(harm[i - 1 : i + 2]) for i in range(1, len(harm))]
    return [*harm[:1], *inner]


def target_harm(harm: Sequence[float]) -> float:
    """Return the target that a smoothed base curve sets: its median over the last quarter of the measurements."""
    return statistics.median(harm[-max(math.ceil((len(harm) - 1) / 4), 1) :])


def seconds_to(target: float, harm: Sequence[float], seconds: Sequence[float]) -> float | None:
    """Return when a smoothed curve first reaches the target, linearly interpolated; None if never."""
    for i, value in enumerate(harm):
        if value > target:
            continue
        if i == 0 or not math.isfinite(harm[i - 1]):
            return seconds[i]
        part = (harm[i - 1] - target) / (harm[i - 1] - value)
        return seconds[i - 1] + part * (seconds[i] - seconds[i - 1])
    return None


def pair_times(
    base: Curve, candidate: Curve, direction: Literal["min", "max"]
) -> tuple[float, tuple[float | None, float | None]]:
    """Return the target of a pair in the metric's units, and the seconds each arm needed for it; None if never reached."""
    curves = [smoothed(curve.metric, direction) for curve in (base, candidate)]
    target = target_harm(curves[0])
    if not math.isfinite(target):
        return math.nan, (None, None)
    first, second = (seconds_to(target, harm, arm.seconds) for harm, arm in zip(curves, (base, candidate), strict=True))
    return (target if direction == "min" else -target), (first, second)


def judge_ends(comparison: TargetComparison) -> NonInferiority:
    """Judge whether the runs of B end no worse than those of A, paired by seed."""
    quality = comparison.quality
    return non_inferior(comparison.ends("A"), comparison.ends("B"), direction=quality.direction, margin=quality.margin)


def read_look(comparison: TargetComparison, looks: Sequence[int] = LOOKS) -> None:
    """Read the verdict at one of the `looks`: interval, missed targets, metric at the end."""
    comparison.held_out = judge_ends(comparison)
    base, candidate = comparison.times("A"), comparison.times("B")
    if not all(math.isfinite(target) for target in comparison.targets):
        comparison.why = NO_MEASUREMENT
        return
    if not all(seconds > 0.0 for seconds in (*base, *candidate)):
        comparison.why = REACHED_AT_ONCE
        return
    if len(base) < MIN_PAIRS:
        spoilt = any(run.spoilt for run in comparison.runs)
        comparison.why = (
            f"only {len(base)} clean pairs: {'other processes kept using the machine' if spoilt else 'the time ran out'}"
        )
        return
    comparison.interval = paired_interval(base, candidate, look_confidence(len(looks)))
    comparison.verdict, comparison.why = _judged(comparison, comparison.interval, comparison.held_out)


def _judged(comparison: TargetComparison, interval: Interval, held_out: NonInferiority) -> tuple[Verdict, str]:
    """Return the verdict. `faster` needs the interval above the floor, all targets reached, and a metric no worse."""
    verdict, floor = judge(interval, comparison.floor.frac), comparison.floor.frac
    bounds = f"{interval.low:.3f} to {interval.high:.3f}"
    if verdict is Verdict.SLOWER:
        return verdict, f"the interval {bounds} is below 1"
    if comparison.missed:
        return Verdict.UNDECIDED, f"{comparison.missed} of {comparison.pairs} runs never reached the target"
    if verdict is not Verdict.FASTER:
        leaves = f"the interval {bounds} allows more than one verdict"
        return verdict, leaves if verdict is Verdict.UNDECIDED else f"noise floor {floor:.1%}"
    if interval.low <= 1.0 + floor:
        return Verdict.UNDECIDED, f"the lower end of {bounds} is not above the noise floor of {floor:.1%}"
    if held_out.verdict != "not_worse":
        ends = "ends worse" if held_out.verdict == "worse" else "is not shown to end as well"
        return Verdict.UNDECIDED, f"reaches the target sooner, but {ends}: {held_out.why}"
    return verdict, f"noise floor {floor:.1%}; {held_out.why}"
