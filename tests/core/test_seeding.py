"""The randomness of a sample is a pure function of (seed, epoch, index), and does not affect the model's own."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hasten.core.seeding import epoch_permutation, kept_random_state, mix, seed_everything, seed_sample


def draw() -> tuple[float, float, float]:
    """Draw one number from each generator that user code uses."""
    return random.random(), float(np.random.rand()), float(torch.rand(()))  # noqa: NPY002


def draw_sample(*where: int) -> tuple[float, float, float]:
    with kept_random_state():
        seed_sample(*where)
        return draw()


whole = st.integers(-(2**70), 2**70)


@given(st.lists(whole, max_size=5))
def test_a_mix_is_a_63_bit_number_of_its_parts_alone(parts: list[int]) -> None:
    assert mix(*parts) == mix(*parts)
    assert 0 <= mix(*parts) < 2**63


def test_mixes_differ_and_keep_the_order_of_their_parts() -> None:
    grid = {mix(seed, epoch, index) for seed in range(10) for epoch in range(10) for index in range(100)}
    assert len(grid) == 10_000
    assert mix(0, 1) != mix(1, 0)
    assert mix(0) != mix(0, 0)


def test_a_mix_does_not_change_between_versions() -> None:
    # A resumed run depends on these numbers.
    assert (mix(0), mix(1, 2, 3)) == (3980143261097177850, 7602938901349714354)


@given(st.integers(0, 2**63 - 1), st.integers(0, 1000), st.integers(0, 10**9))
def test_a_sample_does_not_depend_on_earlier_draws(seed: int, epoch: int, index: int) -> None:
    first = draw_sample(seed, epoch, index)
    draw()
    draw_sample(seed, epoch, index + 1)
    assert draw_sample(seed, epoch, index) == first


def test_neighbours_draw_other_numbers_from_every_generator() -> None:
    where = [(0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)]
    drawn = [draw_sample(*place) for place in where]
    for column in zip(*drawn, strict=True):
        assert len(set(column)) == len(where)


def test_the_generators_are_put_back() -> None:
    seed_everything(3)
    expected = [draw(), draw()]
    seed_everything(3)
    seen = [draw()]
    draw_sample(1, 2, 3)
    seen.append(draw())
    assert seen == expected


def test_the_generators_are_put_back_after_an_error() -> None:
    seed_everything(3)
    expected = draw()
    seed_everything(3)
    with pytest.raises(KeyError), kept_random_state():
        raise KeyError(draw())
    assert draw() == expected


def test_a_run_follows_from_its_seed() -> None:
    seed_everything(5)
    first = draw()
    seed_everything(5)
    assert draw() == first
    seed_everything(6)
    assert all(one != other for one, other in zip(draw(), first, strict=True))


@given(st.integers(0, 300), st.integers(0, 2**63 - 1), st.integers(0, 1000))
def test_an_epoch_visits_each_sample_once(num_samples: int, seed: int, epoch: int) -> None:
    order = epoch_permutation(num_samples, seed, epoch)
    assert sorted(order) == list(range(num_samples))
    torch.rand(3)
    assert epoch_permutation(num_samples, seed, epoch) == order


def test_the_order_changes_with_seed_and_epoch_and_touches_no_generator() -> None:
    seed_everything(0)
    expected = draw()
    seed_everything(0)
    orders = {tuple(epoch_permutation(50, seed, epoch)) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25
    assert draw() == expected
