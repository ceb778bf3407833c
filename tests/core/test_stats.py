"""Verdicts: the formulas are correct (SciPy, worked examples), and the rule is useful (simulation)."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats as reference

from hasten.core.stats import (
    LOOKS,
    Interval,
    Verdict,
    aa_floor_frac,
    block_median,
    judge,
    look_confidence,
    non_inferior,
    paired_interval,
    seeds_needed,
    t_cdf,
    t_quantile,
)

Times = NDArray[np.float64]


@pytest.mark.parametrize("dof", range(1, 201))
def test_student_t_agrees_with_scipy(dof: int) -> None:
    for probability in (0.01, 0.3, 0.5, 0.6, 0.9, 0.95, 0.975, 1 - 0.05 / 6, 0.995, 0.9999):
        assert t_quantile(probability, dof) == pytest.approx(reference.t.ppf(probability, dof), rel=1e-9, abs=1e-9)
    for value in (-40.0, -2.5, -0.1, 0.0, 0.7, 3.0, 100.0):
        assert t_cdf(value, dof) == pytest.approx(reference.t.cdf(value, dof), abs=1e-9)


@pytest.mark.parametrize("probability", [0.0, 1.0, -0.1, math.nan])
def test_a_quantile_needs_a_probability(probability: float) -> None:
    with pytest.raises(ValueError, match="strictly between"):
        t_quantile(probability, 3)


def test_student_t_needs_a_degree_of_freedom() -> None:
    with pytest.raises(ValueError, match="dof >= 1"):
        t_cdf(1.0, 0)


# Intervals.


def test_above_one_the_candidate_is_faster() -> None:
    interval = paired_interval([2.0, 4.0, 2.0], [1.0, 2.0, 1.0], 0.95)
    assert (interval.ratio, interval.low, interval.high) == pytest.approx((2.0, 2.0, 2.0))
    assert (interval.pairs, interval.confidence) == (3, 0.95)


def test_the_interval_is_that_of_scipy_on_log_ratios() -> None:
    base, candidate = [1.10, 1.02, 1.30, 0.99, 1.20], [1.00, 1.01, 1.05, 1.00, 1.00]
    expected = reference.ttest_rel(np.log(base), np.log(candidate))
    low, high = expected.confidence_interval(0.98)
    interval = paired_interval(base, candidate, 0.98)
    assert interval.low == pytest.approx(math.exp(low))
    assert interval.high == pytest.approx(math.exp(high))


times = st.lists(st.tuples(*[st.floats(0.01, 100.0)] * 3), min_size=2, max_size=12)


@given(times)
def test_swapping_the_arms_inverts_the_interval_and_common_drift_cancels(pairs: list[tuple[float, float, float]]) -> None:
    base, candidate, drift = zip(*pairs, strict=True)
    there = paired_interval(base, candidate, 0.95)
    back = paired_interval(candidate, base, 0.95)
    drifted = paired_interval(
        [b * d for b, d in zip(base, drift, strict=True)], [c * d for c, d in zip(candidate, drift, strict=True)], 0.95
    )
    assert there.low <= there.ratio <= there.high
    assert back.ratio == pytest.approx(1.0 / there.ratio)
    assert drifted.ratio == pytest.approx(there.ratio)
    if there.high < 1e9:
        assert back.low == pytest.approx(1.0 / there.high)
        assert drifted.high == pytest.approx(there.high, rel=1e-6)


@pytest.mark.parametrize(
    ("base", "candidate", "words"),
    [
        ([1.0], [1.0], "at least 2 pairs"),
        ([1.0, 1.0], [1.0], "paired"),
        ([1.0, 0.0], [1.0, 1.0], "above 0"),
        ([1.0, 1.0], [1.0, -1.0], "above 0"),
        ([1.0, math.nan], [1.0, 1.0], "finite"),
        ([1.0, 1.0], [1.0, math.inf], "finite"),
    ],
)
def test_times_that_cannot_be_compared_are_refused(base: list[float], candidate: list[float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        paired_interval(base, candidate, 0.95)
    with pytest.raises(ValueError, match=words):
        aa_floor_frac(base, candidate)


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95.0])
def test_a_confidence_is_a_share(confidence: float) -> None:
    with pytest.raises(ValueError, match="Confidence"):
        paired_interval([1.0, 1.1], [1.0, 1.0], confidence)


def test_two_noisy_pairs_give_an_unbounded_interval_and_no_error() -> None:
    interval = paired_interval([1e-3, 1e3], [1e3, 1e-3], 0.99)
    assert interval.high == math.inf
    assert judge(interval, 0.03) is Verdict.UNDECIDED


# Verdicts.


@pytest.mark.parametrize(
    ("ratio", "low", "high", "expected"),
    [
        (1.10, 1.01, 1.20, Verdict.FASTER),
        (1.03, 1.001, 1.06, Verdict.FASTER),
        (1.10, 1.00, 1.20, Verdict.UNDECIDED),
        (1.02, 1.01, 1.04, Verdict.UNDECIDED),
        (1.02, 1.01, 1.03, Verdict.SAME),
        (1.00, 0.98, 1.02, Verdict.SAME),
        (1.00, 0.96, 1.02, Verdict.UNDECIDED),
        (1.00, 0.50, 2.00, Verdict.UNDECIDED),
        (0.90, 0.85, 0.99, Verdict.SLOWER),
        (0.90, 0.85, 1.00, Verdict.UNDECIDED),
        (0.98, 0.96, 0.99, Verdict.UNDECIDED),
        (0.98, 0.972, 0.99, Verdict.SAME),
    ],
)
def test_verdicts(ratio: float, low: float, high: float, expected: Verdict) -> None:
    assert judge(Interval(ratio, low, high, 5, 0.95), 0.03) is expected


@given(times, st.floats(0.0, 0.5))
def test_swapping_the_arms_swaps_the_verdict(pairs: list[tuple[float, float, float]], floor: float) -> None:
    base, candidate, _ = zip(*pairs, strict=True)
    mirror = {Verdict.FASTER: Verdict.SLOWER, Verdict.SLOWER: Verdict.FASTER}
    there = judge(paired_interval(base, candidate, 0.95), floor)
    wider = judge(paired_interval(base, candidate, 0.95), floor + 1e-9)
    if there is wider:  # at the edge of the floor, rounding decides
        back = judge(paired_interval(candidate, base, 0.95), floor + 0.5e-9)
        assert back is mirror.get(there, there)


def test_the_looks_share_alpha() -> None:
    assert LOOKS == (5, 7, 10)
    for looks in (1, 3, 5):
        assert looks * (1.0 - look_confidence(looks, alpha=0.05)) == pytest.approx(0.05)
    assert look_confidence() == look_confidence(len(LOOKS))
    with pytest.raises(ValueError, match="at least one look"):
        look_confidence(0)


def test_a_quiet_machine_keeps_the_least_floor_and_a_noisy_one_raises_it() -> None:
    quiet = aa_floor_frac([1.00, 1.01, 1.00, 0.99, 1.00], [1.00, 1.00, 1.01, 1.00, 0.99])
    assert quiet.frac == 0.03
    assert "minimum 3.0%" in quiet.reason
    base, candidate = [1.0, 1.2, 1.0, 1.2, 1.0], [1.2, 1.0, 1.2, 1.0, 1.0]
    noisy = aa_floor_frac(base, candidate)
    spread = float(np.std(np.log(base) - np.log(candidate), ddof=1))
    assert noisy.frac == pytest.approx(math.exp(1.959964 * spread / math.sqrt(5)) - 1.0, rel=1e-6)
    assert noisy.frac > 0.1
    assert "A/A" in noisy.reason


def test_drift_common_to_a_pair_does_not_raise_the_floor() -> None:
    drift = [1.0, 1.3, 0.8, 2.0, 1.1]
    assert aa_floor_frac(drift, drift).frac == 0.03
    assert aa_floor_frac(drift, drift, minimum=0.05).frac == 0.05


# Quality.

SAME = [1.00, 1.02, 0.98, 1.01, 0.99]


def test_harm_below_the_margin_is_not_worse() -> None:
    tuned = [value + delta for value, delta in zip(SAME, (0.01, -0.01, 0.0, 0.01, -0.01), strict=True)]
    found = non_inferior(SAME, tuned, direction="min", margin=0.05)
    assert found.verdict == "not_worse"
    assert found.mean_harm == pytest.approx(0.0)
    bound = float(reference.t.ppf(0.95, 4)) * 0.01 / math.sqrt(5)
    assert (found.lower, found.upper) == pytest.approx((-bound, bound))
    assert "0.05" in found.why


@pytest.mark.parametrize(("direction", "step"), [("min", 0.2), ("max", -0.2)])
def test_harm_beyond_the_margin_is_worse_in_its_direction(direction: Literal["min", "max"], step: float) -> None:
    tuned = [value + step for value in SAME]
    found = non_inferior(SAME, tuned, direction=direction, margin=0.1)
    assert found.verdict == "worse"
    assert found.mean_harm == pytest.approx(0.2)
    better = non_inferior(SAME, [value - step for value in SAME], direction=direction, margin=0.1)
    assert better.verdict == "not_worse"


def test_a_margin_within_the_bounds_is_undecided() -> None:
    tuned = [1.3, 0.7, 1.2, 0.9, 1.1]
    assert non_inferior(SAME, tuned, direction="min", margin=0.1).verdict == "undecided"


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_tuned_run_without_a_finite_value_is_worse(broken: float) -> None:
    assert non_inferior(SAME, [*SAME[:4], broken], direction="max", margin=9.0).verdict == "worse"
    assert non_inferior([1.0], [broken], direction="min", margin=9.0).verdict == "worse"


def test_too_little_to_judge_is_undecided() -> None:
    for baseline, tuned in (([], []), ([1.0], [1.0]), ([1.0, math.nan, 1.0], [1.0, 1.0, 1.0])):
        found = non_inferior(baseline, tuned, direction="min", margin=1.0)
        assert found.verdict == "undecided"
        assert (found.lower, found.upper, found.seeds) == (-math.inf, math.inf, len(baseline))
        assert found.why


def test_quality_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="paired by seed"):
        non_inferior([1.0, 2.0], [1.0], direction="min", margin=0.1)
    with pytest.raises(ValueError, match="margin"):
        non_inferior(SAME, SAME, direction="min", margin=0.0)
    with pytest.raises(ValueError, match="Direction"):
        non_inferior(SAME, SAME, direction="up", margin=0.1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Alpha"):
        non_inferior(SAME, SAME, direction="min", margin=0.1, alpha=0.95)


# Block medians.


def test_a_spike_does_not_move_the_block_median() -> None:
    assert block_median([1.0] * 9 + [100.0], 5) == 1.0
    assert block_median([1.0, 3.0, 5.0, 7.0], 2) == 4.0
    assert block_median([1.0, 2.0, 9.0], 10) == 2.0
    for values, blocks in (([], 3), ([1.0], 0)):
        with pytest.raises(ValueError, match="blocks"):
            block_median(values, blocks)


@given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=50), st.integers(1, 60))
def test_the_block_median_lies_within_the_values(values: list[float], blocks: int) -> None:
    assert min(values) - 1e-9 <= block_median(values, blocks) <= max(values) + 1e-9


# Is the rule useful? The simulated machine drifts by 4 %, adds a constant offset of 1.2 % to each process, and interrupts
# some steps.

COMPARISONS = 1000
STEPS = 40
FLOOR = 0.03


def simulate(rng: np.random.Generator, speedup: float, luck: float) -> tuple[Times, Times]:
    """Simulate the step times of `LOOKS[-1]` pairs in ABBA order: two arrays [comparison, pair, step] in seconds.

    `luck` is the standard deviation, as a share, of the constant offset of each process.
    """
    num_runs = 2 * LOOKS[-1]
    shape = (COMPARISONS, num_runs)
    period = rng.uniform(5.0, 25.0, (COMPARISONS, 1))
    phase = rng.uniform(0.0, 2 * np.pi, (COMPARISONS, 1))
    drift = 0.04 * np.sin(2 * np.pi * np.arange(num_runs) / period + phase)
    level = np.exp(drift + rng.normal(0.0, luck, shape))
    steps = level[..., None] * np.exp(rng.normal(0.0, 0.02, (*shape, STEPS)))
    steps *= np.where(rng.random(steps.shape) < 0.03, rng.uniform(1.5, 3.0, steps.shape), 1.0)
    runs = steps.reshape(COMPARISONS, LOOKS[-1], 2, STEPS)
    starts_with_base = (rng.integers(0, 2, (COMPARISONS, 1)) + np.arange(LOOKS[-1])) % 2 == 0
    base = np.where(starts_with_base[..., None], runs[:, :, 0], runs[:, :, 1])
    candidate = np.where(starts_with_base[..., None], runs[:, :, 1], runs[:, :, 0])
    return base, candidate / speedup


def sequential_verdict(base_s: Times, candidate_s: Times, floor_frac: float, *, careful: bool = True) -> Verdict:
    """Apply the rule: look after 5, 7 and 10 pairs, and stop at the first verdict.

    If not `careful`, there is no floor and alpha is not split.
    """
    verdict = Verdict.UNDECIDED
    for pairs in LOOKS:
        confidence = look_confidence() if careful else 0.95
        interval = paired_interval(base_s[:pairs].tolist(), candidate_s[:pairs].tolist(), confidence)
        verdict = judge(interval, floor_frac if careful else 0.0)
        if verdict is not Verdict.UNDECIDED:
            break
    return verdict


def rates(speedup: float, luck: float) -> dict[str, float]:
    """Return how often each rule reports a difference, as a share of the comparisons. Ours includes its A/A calibration."""
    rng = np.random.default_rng(20240611)
    base, candidate = simulate(rng, speedup, luck)
    base_s, candidate_s = np.median(base, axis=-1), np.median(candidate, axis=-1)
    aa = [np.median(arm, axis=-1)[:, : LOOKS[0]].tolist() for arm in simulate(rng, 1.0, luck)]
    floors = [aa_floor_frac(one, other).frac for one, other in zip(*aa, strict=True)]
    trials = list(zip(base_s, candidate_s, floors, strict=True))
    differ = (Verdict.FASTER, Verdict.SLOWER)
    ratio = base_s[:, 0] / candidate_s[:, 0]
    ranks = reference.mannwhitneyu(base[:, 0], candidate[:, 0], axis=-1, method="asymptotic")
    return {
        "ours": float(np.mean([sequential_verdict(*trial) in differ for trial in trials])),
        "ours without care": float(np.mean([sequential_verdict(*trial, careful=False) in differ for trial in trials])),
        "one run each": float(np.mean(np.maximum(ratio, 1.0 / ratio) > 1.0 + FLOOR)),
        "ranks of steps": float(np.mean(ranks.pvalue < 0.05)),
    }


machines = pytest.mark.parametrize("luck", [0.012, 0.04], ids=["quiet", "noisy"])


@machines
def test_our_rule_rarely_calls_a_difference_where_there_is_none(luck: float) -> None:
    found = rates(1.0, luck)
    assert found["ours"] <= 0.025
    assert found["ours without care"] > 0.04
    assert found["one run each"] > 0.10
    assert found["ranks of steps"] > 0.15


@machines
def test_our_rule_sees_ten_percent(luck: float) -> None:
    assert rates(1.10, luck)["ours"] >= 0.80


def test_as_many_seeds_as_are_said_to_be_needed_are_enough_and_one_less_is_not() -> None:
    harm = [-0.04, 0.03, 0.0, -0.02, 0.02]
    found = non_inferior([0.0] * 5, harm, direction="min", margin=0.02)
    needed = seeds_needed(found, 0.02)
    assert found.verdict == "undecided"
    assert needed is not None
    spread = (found.upper - found.mean_harm) / t_quantile(0.95, 4) * math.sqrt(5)

    def upper(seeds: int) -> float:
        return found.mean_harm + t_quantile(0.95, seeds - 1) * spread / math.sqrt(seeds)

    assert upper(needed) < 0.02 <= upper(needed - 1)


def test_no_number_of_seeds_is_given_if_none_is_enough() -> None:
    beyond = non_inferior([0.0] * 3, [0.019, 0.03, 0.02], direction="min", margin=0.02)
    assert seeds_needed(beyond, 0.02) is None
    assert seeds_needed(non_inferior([0.0], [0.0], direction="min", margin=0.02), 0.02) is None
    wild = non_inferior([0.0] * 3, [-1.0, 0.9, 0.1], direction="min", margin=0.02)
    assert seeds_needed(wild, 0.02) is None
