"""Decide from few, paired, noisy measurements: intervals, verdicts, looks, floors, non-inferiority.

The unit is always one process, never one step. Steps of a process are correlated, and tests that treat them as independent
report a difference in one of four comparisons of identical code. Two arms that run side by side share the machine's drift.
Each *pair* therefore gives one number, the logarithm of the ratio of its two times, which cancels the drift. The method is a
t-interval of these logarithms. Left out on purpose: the bootstrap (percentile intervals are too short below 15 pairs) and
rank tests on steps. Pure Python: no SciPy at run time.
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
"""Numbers of pairs after which a verdict may be read; fixed before the first measurement."""

ALPHA = 0.025
"""Largest probability that a comparison, over all its looks, reports a difference that does not exist."""

MIN_FLOOR_FRAC = 0.03
"""Smallest share that may be reported as a difference, however certain a smaller one is."""

TRAINING_LOSS = "training loss"
"""The metric that scripts are judged by, because their held-out data is not known."""


def metric_words(metric: str) -> str:
    """Return the name of a metric for messages, such as `held-out accuracy`."""
    return metric if metric == TRAINING_LOSS else f"held-out {metric}"


# Student's t.


def t_cdf(t: float, dof: int) -> float:
    """Return the probability that Student's t with `dof` degrees of freedom is at most `t`.

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
    """Return the value that Student's t with `dof` degrees of freedom is below with `probability`. Uses bisection.

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
        ratio: Baseline time over candidate time. The candidate is faster if it is above 1.
        low: Lower end of the interval of the ratio.
        high: Upper end of the interval of the ratio.
        pairs: Number of pairs measured.
        confidence: Two-sided confidence level, e.g. 0.95.
    """

    ratio: float
    low: float
    high: float
    pairs: int
    confidence: float


class Verdict(enum.StrEnum):
    """The verdict of a comparison on the candidate."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Floor:
    """The noise floor of this machine: the smallest difference that can be detected, as a share, with its reason."""

    frac: float
    reason: str


def paired_interval(base_s: Sequence[float], candidate_s: Sequence[float], confidence: float) -> Interval:
    """Return the ratio of two arms from paired trials, with its t-interval on the logarithmic scale.

    Args:
        base_s: Seconds per item of the baseline, one per pair.
        candidate_s: Seconds per item of the candidate, in the same order of pairs.
        confidence: Two-sided confidence level, strictly between 0 and 1.

    Raises:
        ValueError: Fewer than 2 pairs, unequal lengths, a time that is not finite and positive, or an invalid confidence.
    """
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"Confidence must be strictly between 0 and 1, not {confidence!r}.")
    logs = _log_ratios(base_s, candidate_s)
    mean, standard_error = _mean_and_error(logs)
    half = t_quantile(0.5 + confidence / 2.0, len(logs) - 1) * standard_error
    return Interval(_exp(mean), _exp(mean - half), _exp(mean + half), len(logs), confidence)


def judge(interval: Interval, floor_frac: float) -> Verdict:
    """Return the verdict for an interval, given the noise floor as a share.

    `faster`: the interval is above 1 and the ratio is at least `1 + floor_frac`. `slower`: the mirror image.
    `same`: the whole interval is within the floor on both sides. Otherwise `undecided`: more measurements are needed.
    """
    most = 1.0 + floor_frac
    if interval.low > 1.0 and interval.ratio >= most:
        return Verdict.FASTER
    if interval.high < 1.0 and interval.ratio <= 1.0 / most:
        return Verdict.SLOWER
    if interval.low >= 1.0 / most and interval.high <= most:
        return Verdict.SAME
    return Verdict.UNDECIDED


def look_confidence(looks: int = len(LOOKS), alpha: float = ALPHA) -> float:
    """Return the confidence of each interval of a comparison with this number of looks.

    Each look is another chance of error, so `alpha` is split evenly over the looks (Bonferroni). All intervals together are
    correct with probability at least `1 - alpha`, at whichever look the comparison stops.

    Raises:
        ValueError: There is no look.
    """
    if looks < 1:
        raise ValueError(f"A comparison needs at least one look, not {looks}.")
    return 1.0 - alpha / looks


def aa_floor_frac(base_s: Sequence[float], candidate_s: Sequence[float], *, minimum: float = MIN_FLOOR_FRAC) -> Floor:
    """Return the noise floor of this machine, from pairs of a baseline against itself (A/A).

    It is the larger of `minimum` and `exp(1.96 * sd / sqrt(pairs)) - 1`, where `sd` is the standard deviation of the pairs'
    log ratios. Drift common to both members of a pair does not count as noise.

    Raises:
        ValueError: As in `paired_interval`.
    """
    logs = _log_ratios(base_s, candidate_s)
    _, standard_error = _mean_and_error(logs)
    noise = _exp(statistics.NormalDist().inv_cdf(0.975) * standard_error) - 1.0
    scatter = f"{len(logs)} A/A pairs on this machine scatter by ±{noise:.1%}"
    if noise > minimum:
        return Floor(noise, f"{scatter}, more than the minimum of {minimum:.1%}")
    return Floor(minimum, f"minimum {minimum:.1%}; {scatter}")


@dataclass(frozen=True)
class NonInferiority:
    """Whether tuned runs are no worse than the baseline on a held-out metric.

    Attributes:
        verdict: See `non_inferior`.
        mean_harm: Mean harm over the seeds, in the metric's units. The tuned runs were worse if it is above 0.
        upper: One-sided upper bound of the mean harm; infinite if there is none.
        lower: One-sided lower bound of the mean harm; minus infinity if there is none.
        seeds: Number of pairs of runs.
        why: The explanation of the verdict, with the numbers.
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
    """Compare a held-out metric of tuned runs with baseline runs of the same seeds.

    The harm of a seed is `tuned - baseline` if lower is better (`min`), and its negative if higher is better (`max`).
    The verdict uses one-sided t-bounds of the mean harm, each at confidence `1 - alpha`:

    `not_worse` iff the upper bound is below `margin`: harm as large as the margin is ruled out.
    `worse` iff the lower bound is above `margin`, or a tuned run is not finite while its baseline is.
    `undecided` otherwise: between the two, fewer than 2 seeds, or a baseline that is not finite.

    Raises:
        ValueError: Unequal numbers of seeds, a bad direction, a margin not greater than 0, or alpha outside (0, 0.5].
    """
    if len(baseline) != len(tuned):
        raise ValueError(f"Runs are paired by seed, but there are {len(baseline)} baseline and {len(tuned)} tuned values.")
    if direction not in ("min", "max"):
        raise ValueError(f"Direction must be 'min' or 'max', not {direction!r}.")
    if not margin > 0.0:
        raise ValueError(f"The margin must be greater than 0, not {margin!r}: equality can never be proved.")
    if not 0.0 < alpha <= 0.5:
        raise ValueError(f"Alpha must be above 0 and at most 0.5, not {alpha!r}.")
    seeds = len(baseline)
    broken = sum(math.isfinite(old) and not math.isfinite(new) for old, new in zip(baseline, tuned, strict=True))
    if broken:
        why = f"{broken} of {seeds} tuned runs ended without a finite value, but the baseline had one"
        return NonInferiority("worse", math.inf, math.inf, math.inf, seeds, why)
    if not all(math.isfinite(value) for value in baseline):
        why = "the baseline ended without a finite value, so there is nothing to compare with"
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
        verdict, why = "not_worse", f"harm is below the margin {margin:g}: at most {upper:.4g}"
    elif lower > margin:
        verdict, why = "worse", f"harm is above the margin {margin:g}: at least {lower:.4g}"
    else:
        verdict, why = "undecided", f"harm may be on either side of the margin {margin:g}: {lower:.4g} to {upper:.4g}"
    return NonInferiority(verdict, mean, upper, lower, seeds, f"{why} (mean {mean:.4g}, {seeds} seeds, alpha {alpha:g})")


def seeds_needed(found: NonInferiority, margin: float, *, alpha: float = 0.05, most: int = 100) -> int | None:
    """Estimate how many seeds would prove that harm is below `margin`, if mean and spread stay as in `found`.

    Returns:
        The number of seeds, more than in `found`. None if the mean is not below the margin, the spread is unknown, or more
        than `most` seeds would be needed.
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
    """Return the median of the means of consecutive blocks, an average that is robust to a few spikes.

    Block sizes differ by at most one. With fewer values than blocks, each value is a block.

    Raises:
        ValueError: There are no values, or `num_blocks` is below 1.
    """
    if not values or num_blocks < 1:
        raise ValueError(
            f"block_median needs at least 1 value and 1 block, not {len(values)} values and {num_blocks} blocks."
        )
    blocks = min(num_blocks, len(values))
    edges = [index * len(values) // blocks for index in range(blocks + 1)]
    return statistics.median(statistics.fmean(values[start:end]) for start, end in itertools.pairwise(edges))


def _log_ratios(base_s: Sequence[float], candidate_s: Sequence[float]) -> list[float]:
    if len(base_s) != len(candidate_s):
        raise ValueError(f"Trials are paired, but there are {len(base_s)} baseline and {len(candidate_s)} candidate times.")
    if len(base_s) < 2:
        raise ValueError(f"A comparison needs at least 2 pairs, not {len(base_s)}.")
    for time_s in (*base_s, *candidate_s):
        if not (math.isfinite(time_s) and time_s > 0.0):
            raise ValueError(f"A time must be finite and above 0 seconds, not {time_s!r}.")
    return [math.log(base) - math.log(candidate) for base, candidate in zip(base_s, candidate_s, strict=True)]


def _mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    return statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))


def _exp(value: float) -> float:
    """Return `exp(value)`, or infinity instead of an OverflowError: the interval of two noisy pairs may be unbounded."""
    return math.exp(value) if value < 709.0 else math.inf
