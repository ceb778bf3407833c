"""Tensors are found in all kinds of containers, and the containers keep their types."""

from __future__ import annotations

from collections import OrderedDict, UserDict
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hasten.core.batch import batch_bytes, iter_tensors, map_tensors, padded_length


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass(frozen=True)
class Record:
    image: Any
    name: str


class Encoding(UserDict[str, Any]):
    """A mapping with further attributes, like a tokenizer's encoding."""

    def __init__(self, data: Mapping[str, Any], vocabulary: str) -> None:
        super().__init__(data)
        self.vocabulary = vocabulary


def one(value: float) -> torch.Tensor:
    return torch.full((2,), float(value))


def add_one(batch: Any) -> Any:
    return map_tensors(batch, lambda tensor: tensor + 1)


def values(batch: Any) -> list[float]:
    return [float(tensor[0]) for tensor in iter_tensors(batch)]


@pytest.mark.parametrize(
    "batch",
    [
        one(1),
        [one(1)],
        (one(1),),
        {"x": one(1)},
        OrderedDict(x=one(1)),
        Pair(one(1), "right"),
        Record(one(1), "name"),
        {"x": [(one(1), 3)], "y": None},
        Encoding({"x": one(1)}, "words"),
    ],
    ids=lambda batch: type(batch).__name__,
)
def test_a_container_is_rebuilt_in_kind_and_the_old_one_is_left_alone(batch: Any) -> None:
    mapped = add_one(batch)
    assert type(mapped) is type(batch)
    assert values(mapped) == [2.0]
    assert values(batch) == [1.0]


def test_other_values_are_passed_through_unchanged() -> None:
    thing = object()
    mapped = add_one({"a": "text", "b": 3, "c": None, "d": thing, "e": {1, 2}, "f": Record})
    assert mapped == {"a": "text", "b": 3, "c": None, "d": thing, "e": {1, 2}, "f": Record}
    assert mapped["d"] is thing


def test_other_attributes_of_a_container_are_kept() -> None:
    assert add_one(Encoding({"x": one(1)}, "words")).vocabulary == "words"
    assert add_one(Pair(one(1), "right")).right == "right"
    assert add_one(Record(one(1), "name")).name == "name"


def test_a_mapping_that_cannot_be_written_becomes_a_dict() -> None:
    assert values(add_one(MappingProxyType({"x": one(1)}))) == [2.0]


numbers = st.integers(0, 1000)
batches = st.recursive(
    numbers.map(one) | st.text(max_size=2) | st.none(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3)
        | st.tuples(inner, inner)
        | st.builds(Pair, inner, inner)
    ),
    max_leaves=12,
)


@given(batches)
def test_each_tensor_is_visited_once_in_one_order(batch: Any) -> None:
    assert values(add_one(batch)) == [value + 1 for value in values(batch)]
    assert batch_bytes(batch) == 8 * len(values(batch))


def test_bytes_follow_the_dtype() -> None:
    assert batch_bytes([torch.zeros(3, dtype=torch.float64), {"x": torch.zeros(2, 2, dtype=torch.int8)}, "text"]) == 28


def test_the_padded_length_is_the_largest_second_dimension_of_the_rows() -> None:
    batch = {"a": torch.ones(2, 7), "b": [torch.ones(2, 9, 3), torch.ones(50)], "other": torch.ones(1, 40)}
    assert padded_length(batch, 2) == 9
    assert padded_length(batch, 1) == 40
    assert padded_length(batch, 3) is None
    assert padded_length((torch.ones(3), 3), 3) is None
