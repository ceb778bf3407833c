"""Time to target, judged on invented curves: crossings, targets never reached, curves that go back, and worse ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from hasten.core.job import Quality
from hasten.core.stats import LOOKS, Floor, Verdict
from hasten.tune.proof.time_to_target import (
    MIN_PAIRS,
    NO_MEASUREMENT,
    REACHED_AT_ONCE,
    Curve,
    TargetComparison,
    WholeRun,
    pair_times,
    read_look,
    seconds_to,
    smoothed,
    target_harm,
)
from hasten.tune.search.verdict import decide_to_target

LOSS = Quality(margin=0.05)
POINTS = 16


def curve(metric: Sequence[float], second: float = 1.0) -> Curve:
    """Return a curve with a measurement every `second` seconds."""
    count = range(len(metric))
    return Curve(updates=tuple(count), seconds=tuple(second * at for at in count), metric=tuple(metric))


def falling(speed: float = 1.0, end: float = 0.0, points: int = POINTS) -> list[float]:
    """Return a loss that falls from 1 to `end`, `speed` times as fast as 1 in a whole run."""
    return [max(1.0 - speed * at / points, end) for at in range(points + 1)]


def compared(pairs: Sequence[tuple[Curve, Curve]], quality: Quality = LOSS, **base: Any) -> TargetComparison:
    """Return a comparison of these pairs, read at the end."""
    found = TargetComparison(quality=quality, floor=Floor(0.03, "the least"))
    for pair, (first, second) in enumerate(pairs):
        found.add(
            WholeRun(arm="A", pair=pair, curve=first, items=10, **base),
            WholeRun(arm="B", pair=pair, curve=second, items=10, **base),
        )
    read_look(found, (len(pairs),))
    return found


def jittered(speed: float, pairs: int = 5, **changes: Any) -> list[tuple[Curve, Curve]]:
    """Return pairs in which B needs `1 / speed` of A's updates, each with a little noise in its clock."""
    return [
        (curve(falling(end=0.25)), curve(falling(speed, end=0.25, **changes), 1.0 + 0.01 * (pair % 2)))
        for pair in range(pairs)
    ]


def test_the_curve_is_smoothed_by_a_running_median() -> None:
    assert smoothed([5.0, 4.0, 0.0, 3.0, 2.0], "min") == [5.0, 4.0, 3.0, 2.0, 2.5]
    assert smoothed([0.1, 0.5, 0.9], "max") == [-0.1, -0.5, pytest.approx(-0.7)]
    assert smoothed([1.0, math.nan, 0.5, 0.4], "min")[1] == 1.0
    assert smoothed([1.0, 0.5, math.nan, math.nan], "min")[-1] == math.inf


def test_the_target_is_the_level_of_the_last_quarter() -> None:
    assert target_harm([9.0] * 13 + [4.0, 1.0, 3.0, 2.0]) == 2.5
    assert target_harm([9.0, 3.0]) == 3.0


def test_a_crossing_is_interpolated_between_two_measurements() -> None:
    assert seconds_to(0.5, [1.0, 0.8, 0.4, 0.1], [0.0, 10.0, 20.0, 30.0]) == pytest.approx(17.5)
    assert seconds_to(0.8, [1.0, 0.8, 0.4], [0.0, 10.0, 20.0]) == pytest.approx(10.0)
    assert seconds_to(0.05, [1.0, 0.8, 0.4], [0.0, 10.0, 20.0]) is None
    assert seconds_to(2.0, [1.0, 0.8], [0.0, 10.0]) == 0.0
    assert seconds_to(0.5, [1.0, math.inf, 0.4], [0.0, 10.0, 20.0]) == 20.0


@pytest.mark.parametrize("direction", ["min", "max"])
def test_both_arms_are_measured_by_the_same_rule(direction: Any) -> None:
    sign = 1 if direction == "min" else -1
    base, sooner = (curve([sign * value for value in falling(speed, end=0.25)]) for speed in (1.0, 2.0))
    target, (first, second) = pair_times(base, sooner, direction)
    assert target == pytest.approx(sign * 0.25)
    assert first == pytest.approx(12.0)
    assert second == pytest.approx(6.0)


def test_the_base_always_reaches_its_own_target() -> None:
    for bumps in ([0.3, 0.1, 0.3, 0.1], [0.1, 0.3, 0.3, 0.1], [0.1, 0.2, 0.3, 0.4], [0.9, 0.9, 0.9, 0.1]):
        shaky = curve([1.0] + [0.8] * 12 + bumps)
        assert pair_times(shaky, shaky, "min")[1][0] is not None, bumps


def test_one_lucky_measurement_is_not_a_crossing() -> None:
    base = curve(falling(end=0.25))
    lucky = falling(0.5)
    lucky[3] = 0.0
    assert pair_times(base, curve(lucky), "min")[1][1] is None
    real = pair_times(base, base, "min")[1][0]
    dipped = falling(end=0.25)
    dipped[3] = 0.0
    assert pair_times(base, curve(dipped), "min")[1][1] == real


def test_sooner_at_the_target_is_faster() -> None:
    found = compared(jittered(2.0))
    assert found.verdict is Verdict.FASTER, found.why
    assert found.interval is not None
    assert found.interval.ratio == pytest.approx(2.0, rel=0.02)
    assert found.interval.pairs == 5
    assert decide_to_target(found)[0] == "applied"
    assert decide_to_target(found)[1].startswith("reaches the target sooner: 1.99x")


@pytest.mark.parametrize(("speed", "verdict"), [(0.9, Verdict.SLOWER), (1.0, Verdict.SAME)])
def test_later_or_equally_late_is_refused(speed: float, verdict: Verdict) -> None:
    found = compared(jittered(speed))
    assert found.verdict is verdict
    assert decide_to_target(found)[0] == "refused"


def test_a_missed_target_is_censored_and_never_faster() -> None:
    pairs = jittered(3.0)
    pairs[2] = (pairs[2][0], curve(falling(0.5)))
    found = compared(pairs)
    assert found.missed == 1
    assert found.interval is not None
    assert found.interval.ratio > 1.0
    assert found.verdict is Verdict.UNDECIDED
    assert found.hopeless
    assert decide_to_target(found) == ("refused", "1 of 5 whole runs never reached the target that the base reaches")
    run = next(run for run in found.runs if run.arm == "B" and not run.reached)
    assert run.seconds_to_target == run.curve.seconds[-1]


def test_all_late_runs_are_slower_even_if_censored() -> None:
    found = compared([(curve(falling(2.0, end=0.25)), curve(falling(0.5), 1.0 + 0.01 * pair)) for pair in range(5)])
    assert found.missed == 5
    assert found.verdict is Verdict.SLOWER


def test_a_curve_that_falls_back_ends_worse_and_is_refused() -> None:
    back = [*falling(2.0, end=0.1)[:12], *([0.4] * 5)]
    pairs = [(curve(falling(end=0.25)), curve(back, 1.0 + 0.01 * (pair % 2))) for pair in range(5)]
    found = compared(pairs)
    assert found.missed == 0
    assert found.interval is not None
    assert found.interval.low > 1.5
    assert found.verdict is Verdict.UNDECIDED
    assert "ends worse" in found.why
    assert found.hopeless
    assert decide_to_target(found)[0] == "refused"


def test_an_unproved_final_metric_is_not_faster() -> None:
    pairs = []
    for pair in range(5):
        end = falling(2.0, end=0.25)
        end[-1] += 0.1 * (pair % 2) - 0.01
        pairs.append((curve(falling(end=0.25)), curve(end, 1.0 + 0.01 * (pair % 2))))
    found = compared(pairs)
    assert found.held_out is not None
    assert found.held_out.verdict == "undecided"
    assert found.verdict is Verdict.UNDECIDED
    assert not found.hopeless
    assert decide_to_target(found)[0] == "undecided"


def test_the_lower_end_must_be_above_the_noise_floor() -> None:
    found = TargetComparison(quality=LOSS, floor=Floor(0.49, "a shaky machine"))
    for pair, (first, second) in enumerate(jittered(1.5)):
        found.add(WholeRun(arm="A", pair=pair, curve=first, items=1), WholeRun(arm="B", pair=pair, curve=second, items=1))
    read_look(found)
    assert found.interval is not None
    assert found.interval.ratio > 1.49 > found.interval.low
    assert found.verdict is Verdict.UNDECIDED
    assert "is not above the noise floor of 49.0%" in found.why


def test_disturbed_pairs_are_not_counted() -> None:
    found = compared(jittered(2.0), spoilt=True)
    assert (found.interval, found.verdict) == (None, Verdict.UNDECIDED)
    assert "other processes" in found.why
    assert found.to_dict()["ratio"] is None
    assert len(found.to_dict()["samples"]) == 10


def test_too_few_pairs_give_no_interval() -> None:
    found = compared(jittered(2.0, pairs=MIN_PAIRS - 1))
    assert found.interval is None
    assert not found.hopeless
    assert decide_to_target(found)[0] == "undecided"


def test_a_base_without_a_finite_metric_sets_no_target() -> None:
    found = compared([(curve([1.0] * 12 + [math.nan] * 5), curve(falling()))] * 5)
    assert found.why == NO_MEASUREMENT
    assert found.verdict is Verdict.UNDECIDED


def test_a_target_reached_at_once_proves_nothing() -> None:
    found = compared([(curve([0.2] * 17), curve([0.2] * 17))] * 5)
    assert found.why == REACHED_AT_ONCE
    assert found.interval is None


def test_it_is_read_at_the_confidence_of_its_looks() -> None:
    found = compared(jittered(2.0))
    assert found.interval is not None
    assert found.interval.confidence == pytest.approx(0.975)
    read_look(found, LOOKS)
    assert found.interval.confidence == pytest.approx(1 - 0.025 / 3)


def test_the_samples_contain_the_raw_curves() -> None:
    table = compared(jittered(2.0)).to_dict()
    assert (table["kind"], table["metric"], table["missed"]) == ("time_to_target", "loss", 0)
    assert table["held_out"]["verdict"] == "not_worse"
    assert len(table["targets"]) == 5
    sample = table["samples"][1]
    assert (sample["arm"], sample["reached"], len(sample["curve"])) == ("B", True, 17)
    assert sample["curve"][4] == [4.0, 4.0, 0.5]
    assert sample["seconds_per_item"] == pytest.approx(1.6)
