"""The choice of a microbatch size is a pure function of measurements; these tests use invented ones."""

from __future__ import annotations

import math
import random
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.tune.batch.choice import (
    MeasuredSize,
    Size,
    behind,
    candidate_sizes,
    choose,
    median_interval,
    realised,
    with_head_room,
    without_drift,
)

# Sizes.


@pytest.mark.parametrize(
    ("batch_size", "accumulation", "expected"),
    [
        (1, 1, {1: {}}),
        (8, 1, {1: {"parts": 8}, 2: {"parts": 4}, 4: {"parts": 2}, 8: {}}),
        (2, 4, {1: {"parts": 2}, 2: {}, 4: {"merge": 2}, 8: {"merge": 4}}),
        (6, 4, {1: {"parts": 6}, 2: {"parts": 3}, 3: {"parts": 2}, 6: {}, 12: {"merge": 2}, 24: {"merge": 4}}),
        (1, 6, {1: {}, 2: {"merge": 2}, 3: {"merge": 3}, 4: {"merge": 4}, 6: {"merge": 6}}),
        (10, 1, {1: {"parts": 10}, 2: {"parts": 5}, 4: {"parts": 3}, 5: {"parts": 2}, 10: {}}),
    ],
)
def test_candidates_and_what_makes_them(batch_size: int, accumulation: int, expected: dict[int, dict[str, int]]) -> None:
    found = candidate_sizes(batch_size, accumulation)
    assert {size.samples: next(iter(size.settings().values()), {}) for size in found} == expected
    for size in found:
        name = next(iter(size.settings()), None)
        made = size.optimization()
        assert (made.card.name if made else None) == name
        assert name == (
            None if size.samples == batch_size else "microbatch" if size.samples < batch_size else "merged_microbatches"
        )


@given(st.integers(1, 300), st.integers(1, 40))
def test_a_size_is_computed_by_the_loop(batch_size: int, accumulation: int) -> None:
    found = candidate_sizes(batch_size, accumulation)
    samples = [size.samples for size in found]
    assert samples == sorted(set(samples))
    assert {1, batch_size, batch_size * accumulation} <= set(samples)
    for size in found:
        assert size.parts == 1 or size.merge == 1
        assert size.merge <= accumulation
        assert size.samples == (-(-batch_size // size.parts) if size.parts > 1 else batch_size * size.merge)


@given(st.integers(1, 300), st.integers(1, 300))
def test_the_computed_size_never_exceeds_the_requested_one(samples: int, batch_size: int) -> None:
    assert 1 <= realised(samples, batch_size).samples <= samples


def test_no_size_from_nothing() -> None:
    with pytest.raises(ValueError, match="at least 1, not 0 and 4"):
        candidate_sizes(0, 4)


def test_head_room() -> None:
    assert with_head_room(1000, 0.1) == 900
    assert with_head_room(1000, 0.0) == 1000


# Speed.


@pytest.mark.parametrize(
    ("count", "ranks"), [(1, (0, 0)), (3, (0, 2)), (5, (0, 4)), (7, (0, 6)), (8, (1, 6)), (9, (1, 7)), (15, (3, 11))]
)
def test_the_interval_of_a_median_is_of_order_statistics(count: int, ranks: tuple[int, int]) -> None:
    values = [float(value) for value in range(count)]
    random.Random(count).shuffle(values)
    assert median_interval(values) == ranks


def test_the_interval_covers_the_median_as_often_as_it_says() -> None:
    draw = random.Random(3)
    hits = 0
    for _ in range(2000):
        low, high = median_interval([draw.expovariate(1.0) for _ in range(9)])
        hits += low <= math.log(2) <= high
    assert 0.945 < hits / 2000 < 0.977  # 0.961 by the binomial


def test_no_median_of_nothing() -> None:
    with pytest.raises(ValueError, match="at least one value"):
        median_interval([])


def test_drift_of_the_machine_is_removed() -> None:
    drift = [1.0, 0.4, 1.3, 0.8, 1.1]
    turns = {4: [100.0 * by for by in drift], 8: [120.0 * by for by in drift], 16: [90.0 * by for by in drift[:3]]}
    found = without_drift(turns)
    middle = statistics.geometric_mean(drift)
    for size, level in ((4, 100.0), (8, 120.0), (16, 90.0)):
        assert found[size] == pytest.approx([level * middle] * len(turns[size]), rel=1e-6)
    assert behind(turns) == {4, 16}


def test_independent_scatter_is_kept() -> None:
    turns = {4: [100.0, 100.0, 100.0, 100.0, 100.0], 8: [80.0, 140.0, 100.0, 120.0, 90.0]}
    low, high = median_interval(without_drift(turns)[8])
    assert high / low > 1.2
    assert behind(turns) == set()


def test_one_size_alone_keeps_its_scatter() -> None:
    assert without_drift({4: [10.0, 20.0]}) == {4: pytest.approx([10.0, 20.0])}
    assert without_drift({}) == {}
    assert behind({}) == set()


def test_a_speed_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="above 0"):
        without_drift({4: [0.0, 1.0]})


# The choice.


def sized(size: int, speed: float, spread: float = 0.01, **changes: Any) -> MeasuredSize:
    values: dict[str, Any] = {
        "low": speed * (1 - spread),
        "high": speed * (1 + spread),
        "peak_bytes": size * 100,
        "fits": True,
    }
    return MeasuredSize(size=size, samples_per_s=speed, **{**values, **changes})


def test_a_smaller_faster_size_beats_the_largest() -> None:
    found = choose([sized(4, 100.0), sized(8, 150.0), sized(16, 120.0), sized(32, 110.0)])
    assert found is not None
    assert found.size == 8


def test_a_tie_goes_to_the_smaller_memory() -> None:
    overlap = choose([sized(4, 100.0), sized(8, 145.0, 0.05), sized(16, 150.0, 0.05)])
    assert overlap is not None
    assert overlap.size == 8
    apart_but_alike = choose([sized(8, 148.0, 0.001), sized(16, 150.0, 0.001)])
    assert apart_but_alike is not None
    assert apart_but_alike.size == 8
    memory_not_size = choose([sized(8, 150.0, peak_bytes=900), sized(16, 150.0, peak_bytes=800)])
    assert memory_not_size is not None
    assert memory_not_size.size == 16


@pytest.mark.parametrize(("peak_bytes", "chosen"), [(790, 16), (850, 8)])
def test_the_own_size_stays_unless_another_saves_notable_memory(peak_bytes: int, chosen: int) -> None:
    tied = [sized(8, 150.0, peak_bytes=1000), sized(16, 150.0, peak_bytes=peak_bytes)]
    found = choose(tied, 8)
    assert found is not None
    assert found.size == chosen


def test_the_own_size_yields_to_a_faster_one() -> None:
    found = choose([sized(8, 100.0, peak_bytes=100), sized(16, 150.0, peak_bytes=900)], 8)
    assert found is not None
    assert found.size == 16


def test_sizes_that_do_not_fit_or_were_not_timed_are_not_chosen() -> None:
    untimed = MeasuredSize(size=64, fits=True, peak_bytes=1, why="fits, but not timed: the time ran out")
    found = choose([sized(4, 100.0), sized(8, 500.0, fits=False, why="out of memory"), untimed])
    assert found is not None
    assert found.size == 4
    assert choose([sized(4, 100.0, fits=False), untimed]) is None
    assert choose([]) is None


def test_a_size_that_the_job_computes_itself_needs_no_plan() -> None:
    assert Size(samples=8).settings() == {}
    assert Size(samples=4, parts=2).settings() == {"microbatch": {"parts": 2}}
    assert Size(samples=16, merge=2).settings() == {"merged_microbatches": {"merge": 2}}
