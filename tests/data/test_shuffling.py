"""The kernel shuffles as NumPy does, number for number: orders must not depend on what is installed."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from hasten.data.stream import shuffling
from hasten.data.stream.order import Order
from hasten.data.stream.shuffling import shuffle

pytest.importorskip("numba")


def generator(*seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(seed))


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many numbers each shuffle by the kernel began with, all of them large enough."""
    seen: list[int] = []
    by_kernel = shuffling._by_kernel

    def counted(kernel: Any, random: np.random.Generator, values: Any) -> None:
        seen.append(len(values))
        by_kernel(kernel, random, values)

    shuffling._kernel()
    monkeypatch.setattr(shuffling, "_WORTH", 1)
    monkeypatch.setattr(shuffling, "_by_kernel", counted)
    return seen


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 31, 32, 33, 1000, 4095, 4096, 4097, 65535, 65536, 65537, 300_000])
def test_as_numpy(count: int, used: list[int]) -> None:
    for seed in range(3):
        ours, theirs = np.arange(count), np.arange(count)
        shuffle(generator(count, seed), ours)
        generator(count, seed).shuffle(theirs)
        assert np.array_equal(ours, theirs)
    assert used == [count] * 3


def test_draws_are_drawn_again_until_all_have_a_place(used: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shuffling, "_DRAWN_FRAC", 0.01)
    ours, theirs = np.arange(50_000), np.arange(50_000)
    shuffle(generator(5), ours)
    generator(5).shuffle(theirs)
    assert np.array_equal(ours, theirs)


def test_few_numbers_are_left_to_numpy(used: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shuffling, "_WORTH", 100)
    shuffle(generator(1), np.arange(99))
    shuffle(generator(1), np.arange(100))
    assert used == [100]


def test_nothing_is_loaded_for_it(used: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "numba")
    shuffle(generator(1), np.arange(1000))
    assert not used


@pytest.mark.parametrize("broken", [None, ModuleType("hasten.data.stream.shuffle_kernel")])
def test_a_kernel_that_is_not_there_or_shuffles_otherwise_is_not_used(
    broken: ModuleType | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if broken is not None:
        broken.shuffle_on = lambda *_: 0  # type: ignore[attr-defined]  # a module made here
    monkeypatch.setitem(sys.modules, "hasten.data.stream.shuffle_kernel", broken)
    shuffling._kernel.cache_clear()
    try:
        ours, theirs = np.arange(10_000), np.arange(10_000)
        shuffle(generator(2), ours)
        generator(2).shuffle(theirs)
        assert np.array_equal(ours, theirs)
        assert shuffling._kernel() is None
    finally:
        shuffling._kernel.cache_clear()


def test_an_epoch_has_one_order_with_the_kernel_and_without(used: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    counts = np.full(20, 700)
    orders = []
    for worth in (1, 2**62):
        monkeypatch.setattr(shuffling, "_WORTH", worth)
        order = Order(counts, seed=3, epoch=1, shuffle=True, window_blocks=8)
        orders.append(np.concatenate([part.samples for part in order.parts(0, order.num_samples)]))
    assert np.array_equal(orders[0], orders[1])
    assert used == [5600, 5600, 2800]
