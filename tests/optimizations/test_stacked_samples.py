"""Samples kept as rows of tensors come back as they were, and their batches are those of the default collate function."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import default_collate

from hasten.optimizations.parts.stacked_samples import StackedSamples, is_stackable
from hasten.script.data.equality import difference

NUM = 7
Pair = namedtuple("Pair", "x y")  # noqa: PYI024 - the plain one is a container of its own in the default collate function

STACKABLE: dict[str, Callable[[int], Any]] = {
    "image and class": lambda i: (torch.full((1, 4, 4), float(i)), i),
    "list": lambda i: [torch.tensor(i), torch.tensor([i, -i], dtype=torch.int8)],
    "nested": lambda i: {"x": (np.full((2, 2), i, np.uint8), [i * 0.1]), "y": {"flag": i % 2 == 0}},
    "numpy numbers": lambda i: (np.float32(i) / 3, np.int64(i), np.bool_(i % 2), np.uint8(i)),
    "one tensor": lambda i: torch.tensor([i, float("nan"), -0.0]),
    "one number": lambda i: i,
    "float": lambda i: i / 3,
    "half": lambda i: torch.tensor([i / 3], dtype=torch.bfloat16),
    "complex": lambda i: torch.tensor([complex(i, -i)]),
    "empty tensor": lambda i: (torch.empty(0), i),
    "channels last": lambda i: torch.arange(60.0).reshape(4, 5, 3).permute(2, 0, 1) + i,
    "view": lambda i: torch.arange(12.0).reshape(3, 4).t()[1:, :2] + i,
}
OTHER: dict[str, Callable[[int], Any]] = {
    "text": lambda i: (torch.ones(2), str(i)),
    "lengths": lambda i: torch.ones(i + 1),
    "dtypes": lambda i: torch.ones(2, dtype=torch.float64 if i else torch.float32),
    "whole and broken numbers": lambda i: 0.5 if i else 1,
    "keys": lambda i: {"a": i} if i else {"b": i},
    "named": lambda i: Pair(torch.ones(2), i),
    "none": lambda _: (torch.ones(2), None),
    "gradient": lambda _: torch.ones(2, requires_grad=True),
    "sparse": lambda _: torch.eye(3).to_sparse(),
    "huge": lambda _: 2**70,
    "objects": lambda i: np.array([i, "x"], dtype=object),
    "subclass": lambda _: torch.nn.Parameter(torch.ones(2), requires_grad=False),
}


def stacked(make: Callable[[int], Any]) -> StackedSamples:
    rows = StackedSamples(NUM)
    assert all(rows.put(index, make(index)) for index in reversed(range(NUM)))
    return rows


@pytest.mark.parametrize("case", STACKABLE)
def test_a_sample_comes_back_as_it_was(case: str) -> None:
    make, rows = STACKABLE[case], stacked(STACKABLE[case])
    assert len(rows) == NUM
    for index in range(NUM):
        assert difference(rows.get(index), make(index)) == ""


@pytest.mark.parametrize("case", STACKABLE)
@pytest.mark.parametrize("indices", [[3], [0, 1, 2], [6, 0, 6, 2]])
def test_a_batch_is_that_of_the_default_collate_function(case: str, indices: list[int]) -> None:
    batch, made = stacked(STACKABLE[case]).batch(indices), default_collate([STACKABLE[case](index) for index in indices])
    assert difference(batch, made) == ""
    for one, other in zip(leaves(batch), leaves(made), strict=True):
        assert one.stride() == other.stride()


@pytest.mark.parametrize("case", OTHER)
def test_samples_of_another_form_are_not_stored(case: str) -> None:
    rows = StackedSamples(NUM)
    stored = [rows.put(index, OTHER[case](index)) for index in range(3)]
    assert not stored[-1]
    assert not is_stackable([OTHER[case](index) for index in range(3)])
    assert rows.batch([0, 1, 2]) is None


def test_what_was_stored_before_another_form_stays() -> None:
    rows = StackedSamples(NUM)
    assert rows.put(0, torch.ones(2))
    assert not rows.put(1, torch.ones(3))
    assert not rows.put(2, torch.ones(2))
    assert [rows.has(index) for index in range(3)] == [True, False, False]
    batch: Any = rows.batch([0, 0])
    assert batch.tolist() == [[1, 1], [1, 1]]
    assert rows.batch([]) is None


def test_a_sample_that_was_given_does_not_change_the_rows() -> None:
    rows = stacked(STACKABLE["image and class"])
    rows.get(3)[0].zero_()
    batch: Any = rows.batch([3])
    batch[0].zero_()
    assert difference(rows.get(3), STACKABLE["image and class"](3)) == ""


@given(
    st.lists(st.one_of(st.integers(), st.floats(), st.booleans()), min_size=1, max_size=NUM),
    st.sampled_from([lambda x: x, lambda x: (x, [x]), lambda x: {"a": x}]),
)
def test_numbers_of_any_value_come_back_or_are_refused(numbers: list[Any], make: Callable[[Any], Any]) -> None:
    rows = StackedSamples(len(numbers))
    if all(rows.put(index, make(number)) for index, number in enumerate(numbers)):
        assert all(difference(rows.get(index), make(number)) == "" for index, number in enumerate(numbers))
        assert difference(rows.batch(list(range(len(numbers)))), default_collate([make(number) for number in numbers])) == ""


def leaves(batch: Any) -> list[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        return [batch]
    return [leaf for part in (batch.values() if isinstance(batch, dict) else batch) for leaf in leaves(part)]
