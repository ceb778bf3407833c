"""The order of samples must never change, because the states of older runs depend on it."""

from __future__ import annotations

import hashlib

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hasten.data.stream import order as under_test
from hasten.data.stream.order import Order
from hasten.data.stream.shares import Shares


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=30).filter(any), st.integers(0, 9), st.booleans(), st.integers(1, 12)
)
def test_a_window_is_the_samples_of_its_blocks_one_after_another_and_then_shuffled(
    counts: list[int], seed: int, shuffle: bool, window_blocks: int
) -> None:
    order = Order(np.array(counts), seed=seed, epoch=2, shuffle=shuffle, window_blocks=window_blocks)
    firsts = np.cumsum(counts) - counts
    for window in range(order.num_windows):
        blocks = order.blocks_of(window).tolist()
        want = np.concatenate([np.arange(firsts[block], firsts[block] + counts[block]) for block in blocks])
        if shuffle:
            under_test._generator(seed, 2, under_test._WITHIN, window).shuffle(want)
        found = order._samples(window)
        assert (found.tolist(), found.dtype) == (want.tolist(), want.dtype)


def test_the_order_of_a_seed_and_an_epoch_never_changes() -> None:
    order = Order(np.full(100, 64), seed=7, epoch=3, shuffle=True, window_blocks=16)
    found = np.concatenate([part.samples for part in order.parts(0, order.num_samples)])
    assert hashlib.sha256(found.astype("<i8").tobytes()).hexdigest()[:16] == "ef65590941af838d"


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 200), st.integers(1, 9), st.integers(1, 5), st.booleans(), st.integers(0, 210))
def test_steps_are_one_step_after_another(samples: int, batch: int, ranks: int, drop_last: bool, start: int) -> None:
    shares = Shares(num_samples=samples, batch_size=batch, world_size=ranks, drop_last=drop_last)
    want, at = [], start
    while (step := shares.step(at))[0] < step[1]:
        want.append(step)
        at = step[1]
    assert list(shares.steps(start)) == want
