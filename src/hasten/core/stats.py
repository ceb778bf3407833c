"""Decide from few, paired, noisy measurements: intervals, verdicts, looks, floors, non-inferiority.

The unit everywhere is one process, never one step: steps of a process are correlated, and tests that count them as
independent raise an alarm in one of four comparisons where nothing changed. Two arms that run side by side share the
machine's drift, so a *pair* gives one number, the logarithm of the ratio of its two times, in which the drift is gone;
a t-interval of those logarithms is the whole method. What was left out on purpose: the bootstrap (percentile intervals
are too short below 15 pairs) and rank tests on steps. Pure Python: no SciPy at run time.
"""

from __future__ import annotations

import enum
import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

LOOKS = (5, 7, 10)
"""How many pairs there are when a verdict may be read; fixed before the first measurement."""

ALPHA = 0.025
"""A comparison calls a difference that is not there with at most this probability, all its looks together."""

MIN_FLOOR_FRAC = 0.03
"""A difference below this share is never called one, however sure it is."""


# Student's t.


def t_cdf(t: float, dof: int) -> float:
    """Probability that Student's t with `dof` degrees of freedom is at most `t`.

    Exact finite sums for whole degrees of freedom: Abramowitz & Stegun 26.7.3 (odd) and 26.7.4 (even).

    Raises:
        ValueError: `dof` is below 1, or `t` is not a number.
    """
    if dof < 1 or math.isnan(t):
        raise ValueError(f"Student's t needs dof >= 1 and a number, not dof={dof!r}, t={t!r}.")
    theta = math.atan2(t, math.sqrt(dof))
    sin, cos = math.sin(theta), math.cos(theta)
    odd = dof % 2
    term = cos if odd else 1.0
    total = 0.0 if dof == 1 else term
    for power in range(3 if odd else 2, dof - 1, 2):
        term *= cos * cos * (power - 1) / power
        total += term
    within = 2.0 / math.pi * (theta + sin * total) if odd else sin * total
    return min(max(0.5 * (1.0 + within), 0.0), 1.0)


def t_quantile(probability: float, dof: int) -> float:
    """The value that Student's t with `dof` degrees of freedom stays below with `probability`; by bisection.

    Raises:
        ValueError: `probability` is not strictly between 0 and 1, or `dof` is below 1.
    """
    if not 0.0 < probability < 1.0:
        raise ValueError(f"A quantile needs a probability strictly between 0 and 1, not {probability!r}.")
    if probability < 0.5:
        return -t_quantile(1.0 - probability, dof)
    low, high = 0.0, 1.0
    while t_cdf(high, dof) < probability and high < 1e300:
        low, high = high, 2.0 * high
    while True:
        middle = 0.5 * (low + high)
        if middle in (low, high):
            return middle
        if t_cdf(middle, dof) < probability:
            low = middle
        else:
            high = middle


# Paired comparison.


@dataclass(frozen=True)
class Interval:
    """How much faster the candidate is, with its uncertainty.

    Attributes:
        ratio: Baseline time over candidate time; above 1 the candidate is faster.
        low: Lower end of the interval of the ratio.
        high: Upper end of the interval of the ratio.
        pairs: How many pairs it rests on.
        confidence: Two-sided, e.g. 0.95.
    """

    ratio: float
    low: float
    high: float
    pairs: int
    confidence: float


class Verdict(enum.StrEnum):
    """What a comparison says of the candidate."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Floor:
    """The smallest difference that counts on this machine, as a share, and where it came from."""

    frac: float
    reason: str


def paired_interval(base_s: Sequence[float], candidate_s: Sequence[float], confidence: float) -> Interval:
    """Give the ratio of two arms from paired trials, with its t-interval on the logarithmic scale.

    Args:
        base_s: Seconds per item of the baseline, one per pair.
        candidate_s: Seconds per item of the candidate, in the same order of pairs.
        confidence: Two-sided, strictly between 0 and 1.

    Raises:
        ValueError: Fewer than 2 pairs, unequal lengths, a time that is not finite and positive, or a bad confidence.
    """
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"Confidence must lie strictly between 0 and 1, not {confidence!r}.")
    logs = _log_ratios(base_s, candidate_s)
    mean, standard_error = _mean_and_error(logs)
    half = t_quantile(0.5 + confidence / 2.0, len(logs) - 1) * standard_error
    return Interval(_exp(mean), _exp(mean - half), _exp(mean + half), len(logs), confidence)


def judge(interval: Interval, floor_frac: float) -> Verdict:
    """Say what an interval means, given the smallest share that counts.

    `faster`: the interval lies above 1 and the ratio is at least `1 + floor_frac`. `slower`: the mirror image.
    `same`: the whole interval lies within the floor on both sides. Otherwise `undecided`: measure more.
    """
    most = 1.0 + floor_frac
    if interval.low > 1.0 and interval.ratio >= most:
        return Verdict.FASTER
    if interval.high < 1.0 and interval.ratio <= 1.0 / most:
        return Verdict.SLOWER
    if interval.low >= 1.0 / most and interval.high <= most:
        return Verdict.SAME
    return Verdict.UNDECIDED


def look_confidence(look_index: int, alpha: float = ALPHA) -> float:
    """Confidence of the interval read at one of the `LOOKS`.

    Looking several times is several chances to be wrong, so `alpha` is split evenly over the looks (Bonferroni): all
    intervals hold together with probability at least `1 - alpha`, whichever look the comparison stops at.

    Raises:
        ValueError: There is no such look.
    """
    if not 0 <= look_index < len(LOOKS):
        raise ValueError(f"There are {len(LOOKS)} looks, numbered from 0; {look_index} is none of them.")
    return 1.0 - alpha / len(LOOKS)


def aa_floor_frac(base_s: Sequence[float], candidate_s: Sequence[float], *, minimum: float = MIN_FLOOR_FRAC) -> Floor:
    """The smallest difference that counts here, from pairs of a baseline against itself (A/A).

    The larger of `minimum` and `exp(1.96 * sd / sqrt(pairs)) - 1`, where `sd` is that of the pairs' log ratios around
    their mean: what is common to both members of a pair (drift) does not count as noise.

    Raises:
        ValueError: As `paired_interval`.
    """
    logs = _log_ratios(base_s, candidate_s)
    _, standard_error = _mean_and_error(logs)
    noise = _exp(statistics.NormalDist().inv_cdf(0.975) * standard_error) - 1.0
    seen = f"{len(logs)} A/A pairs on this machine scatter by ±{noise:.1%}"
    if noise > minimum:
        return Floor(noise, f"{seen}, more than the least that counts ({minimum:.1%})")
    return Floor(minimum, f"the least that counts is {minimum:.1%}; {seen}")


@dataclass(frozen=True)
class NonInferiority:
    """Whether tuned runs are no worse than the baseline on a held-out metric.

    Attributes:
        verdict: See `non_inferior`.
        mean_harm: Mean of the harm over the seeds, in the metric's units; above 0 the tuned runs were worse.
        upper: One-sided upper bound of the mean harm; infinite where there is none.
        lower: One-sided lower bound of the mean harm; minus infinite where there is none.
        seeds: How many pairs of runs it rests on.
        why: The verdict in words, with the numbers.
    """

    verdict: Literal["not_worse", "worse", "undecided"]
    mean_harm: float
    upper: float
    lower: float
    seeds: int
    why: str


def non_inferior(
    baseline: Sequence[float],
    tuned: Sequence[float],
    *,
    direction: Literal["min", "max"],
    margin: float,
    alpha: float = 0.05,
) -> NonInferiority:
    """Judge a held-out metric of tuned runs against baseline runs of the same seeds.

    The harm of a seed is `tuned - baseline` where less is better (`min`), its negative where more is better (`max`).
    With one-sided t-bounds of the mean harm, each at confidence `1 - alpha`:

    `not_worse` iff the upper bound is below `margin`: harm as large as the margin is ruled out.
    `worse` iff the lower bound is above `margin`, or a tuned run is not finite where its baseline is.
    `undecided` otherwise: between the two, fewer than 2 seeds, or a baseline that is not finite itself.

    Raises:
        ValueError: Unequal numbers of seeds, a bad direction, a margin not greater than 0, or alpha outside (0, 0.5].
    """
    if len(baseline) != len(tuned):
        raise ValueError(f"Runs are paired by seed: {len(baseline)} baseline values, but {len(tuned)} tuned ones.")
    if direction not in ("min", "max"):
        raise ValueError(f"Direction must be 'min' or 'max', not {direction!r}.")
    if not margin > 0.0:
        raise ValueError(f"The margin must be greater than 0, not {margin!r}: nothing is ever proved equal.")
    if not 0.0 < alpha <= 0.5:
        raise ValueError(f"Alpha must be above 0 and at most 0.5, not {alpha!r}.")
    seeds = len(baseline)
    broken = sum(math.isfinite(old) and not math.isfinite(new) for old, new in zip(baseline, tuned, strict=True))
    if broken:
        why = f"{broken} of {seeds} tuned runs ended without a finite value where the baseline had one"
        return NonInferiority("worse", math.inf, math.inf, math.inf, seeds, why)
    if not all(math.isfinite(value) for value in baseline):
        why = "the baseline itself ended without a finite value: nothing to compare with"
        return NonInferiority("undecided", math.nan, math.inf, -math.inf, seeds, why)
    sign = 1.0 if direction == "min" else -1.0
    harm = [sign * (new - old) for old, new in zip(baseline, tuned, strict=True)]
    if seeds < 2:
        mean = harm[0] if harm else math.nan
        return NonInferiority("undecided", mean, math.inf, -math.inf, seeds, f"{seeds} seed(s): at least 2 are needed")
    mean, standard_error = _mean_and_error(harm)
    half = t_quantile(1.0 - alpha, seeds - 1) * standard_error
    upper, lower = mean + half, mean - half
    verdict: Literal["not_worse", "worse", "undecided"]
    if upper < margin:
        verdict, words = "not_worse", f"harm is below the margin {margin:g}: at most {upper:.4g}"
    elif lower > margin:
        verdict, words = "worse", f"harm is beyond the margin {margin:g}: at least {lower:.4g}"
    else:
        verdict, words = "undecided", f"harm may lie on either side of the margin {margin:g}: {lower:.4g} to {upper:.4g}"
    return NonInferiority(verdict, mean, upper, lower, seeds, f"{words} (mean {mean:.4g}, {seeds} seeds, alpha {alpha:g})")


def seeds_needed(found: NonInferiority, margin: float, *, alpha: float = 0.05, most: int = 100) -> int | None:
    """About how many seeds would show that harm is below `margin`, if mean and spread stay as they were `found`.

    Returns:
        The number, more than were seen; None where the mean is not below the margin, the spread is not known, or it would
        take more than `most`.
    """
    if found.seeds < 2 or not math.isfinite(found.upper) or found.mean_harm >= margin:
        return None
    half = found.upper - found.mean_harm
    spread = half / t_quantile(1.0 - alpha, found.seeds - 1) * math.sqrt(found.seeds)
    for seeds in range(found.seeds + 1, most + 1):
        if found.mean_harm + t_quantile(1.0 - alpha, seeds - 1) * spread / math.sqrt(seeds) < margin:
            return seeds
    return None


def block_median(values: Sequence[float], num_blocks: int) -> float:
    """Median of the means of consecutive blocks: a level that a few spikes do not move.

    Block sizes differ by one at most; with fewer values than blocks each value is a block.

    Raises:
        ValueError: There is no value, or `num_blocks` is below 1.
    """
    if not values or num_blocks < 1:
        raise ValueError(f"A median of block means needs values and blocks, not {len(values)} values, {num_blocks} blocks.")
    blocks = min(num_blocks, len(values))
    edges = [index * len(values) // blocks for index in range(blocks + 1)]
    return statistics.median(statistics.fmean(values[start:end]) for start, end in itertools.pairwise(edges))


def _log_ratios(base_s: Sequence[float], candidate_s: Sequence[float]) -> list[float]:
    if len(base_s) != len(candidate_s):
        raise ValueError(f"Trials are paired: {len(base_s)} baseline times, but {len(candidate_s)} of the candidate.")
    if len(base_s) < 2:
        raise ValueError(f"A comparison needs at least 2 pairs, not {len(base_s)}.")
    for time_s in (*base_s, *candidate_s):
        if not (math.isfinite(time_s) and time_s > 0.0):
            raise ValueError(f"A time must be finite and above 0 seconds, not {time_s!r}.")
    return [math.log(base) - math.log(candidate) for base, candidate in zip(base_s, candidate_s, strict=True)]


def _mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    return statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))


def _exp(value: float) -> float:
    """`exp` that gives infinity instead of an error: two wild pairs may have an interval without end."""
    return math.exp(value) if value < 709.0 else math.inf
