"""Tensors are found in all kinds of containers, and the containers keep their types."""

from __future__ import annotations

import copy
import pickle
from collections import Counter, OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from hasten.core.batch import batch_bytes, content, cut_at, iter_tensors, kept_length, map_tensors, padded_length, tails
from hasten.core.layouts import numbers as numbers_of


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


@dataclass(frozen=True, slots=True)
class Slotted:
    image: Any
    name: str


@dataclass
class Counted:
    image: Any
    total: Any = field(init=False, default=0)


@attrs.frozen
class Attrs:
    image: Any
    name: str


@attrs.define(slots=False)
class PlainAttrs:
    image: Any


class Rows(Mapping[str, Any]):
    """A read-only mapping whose constructor needs arguments."""

    def __init__(self, rows: dict[str, Any], name: str) -> None:
        self._rows, self.name = rows, name

    def __getitem__(self, key: str) -> Any:
        return self._rows[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


class Strict(OrderedDict[str, Any]):
    """A mapping that refuses `update` and keeps its items as attributes too, as Hugging Face's `ModelOutput` does."""

    def __init__(self, **items: Any) -> None:
        for name, value in items.items():
            super().__setitem__(name, value)
            setattr(self, name, value)

    def update(self, *_: Any, **__: Any) -> None:
        raise TypeError("not allowed")

    def __setitem__(self, *_: Any) -> None:
        raise TypeError("not allowed")

    def __reduce__(self) -> Any:
        return _strict, (dict(self),)


def _strict(items: dict[str, Any]) -> Strict:
    return Strict(**items)


class Frozen(dict[str, Any]):
    def __setitem__(self, *_: Any) -> None:
        raise TypeError("frozen")


class Graph:
    """A batch of graphs as in PyG: it has `to` and `apply`, which changes it in place."""

    def __init__(self, x: Any) -> None:
        self.store = {"x": x}

    def __copy__(self) -> Graph:
        return Graph(self.store["x"])

    def to(self, device: str) -> Graph:
        return self.apply(lambda tensor: tensor.to(device))

    def apply(self, fn: Callable[[torch.Tensor], torch.Tensor]) -> Graph:
        self.store = {name: fn(value) for name, value in self.store.items()}
        return self


class Masked:
    """A tensor with its mask, as in detection transformers."""

    def __init__(self, tensors: Any, mask: Any) -> None:
        self.tensors, self.mask = tensors, mask

    def to(self, device: str) -> Masked:
        return Masked(self.tensors.to(device), self.mask.to(device))


class Marked(list[Any]):
    mark = ""


class SubTensor(torch.Tensor):
    pass


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
        Slotted(one(1), "name"),
        Counted(one(1)),
        Attrs(one(1), "name"),
        PlainAttrs(one(1)),
        Rows({"x": one(1)}, "name"),
        MappingProxyType({"x": one(1)}),
        Strict(x=one(1), y=None),
        defaultdict(list, x=[one(1)]),
        Counter({"x": one(1)}),
        UserList([one(1)]),
        Marked([one(1)]),
        deque([one(1)], maxlen=3),
        {one(1)},
        frozenset({one(1)}),
        Graph(one(1)),
        Masked(one(1), None),
        torch.max(torch.ones(1, 2), 0)[:1],
        SubTensor([1.0, 1.0]),
        [Record(Rows({"x": {"y": (Pair(one(1), 2),)}}, "name"), "name")],
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

    assert add_one(Slotted(one(1), "name")).name == "name"
    assert add_one(Rows({"x": one(1)}, "name")).name == "name"
    assert add_one(deque([one(1)], maxlen=3)).maxlen == 3
    assert add_one(defaultdict(list, x=one(1)))["new"] == []
    marked = Marked([one(1)])
    marked.mark = "mine"
    assert add_one(marked).mark == "mine"
    counted = Counted(one(1))
    counted.total = one(2)
    assert float(add_one(counted).total[0]) == 3


def test_items_that_are_attributes_too_stay_the_same_tensors() -> None:
    mapped = add_one(Strict(logits=one(1), loss=None))
    assert mapped.logits is mapped["logits"]
    assert list(mapped) == ["logits", "loss"]


def test_references_to_one_object_stay_references_to_one_object() -> None:
    shared, tensor = [one(1)], one(5)
    mapped = add_one({"a": shared, "b": (shared, tensor), "c": tensor})
    assert mapped["a"] is mapped["b"][0]
    assert mapped["b"][1] is mapped["c"]
    assert len(values(mapped)) == 2


def test_what_does_not_change_is_the_same_object() -> None:
    for batch in ({"x": [one(1)]}, Strict(x=one(1)), Rows({"x": one(1)}, "n"), Graph(one(1)), torch.Size((1, 2)), {"x": 1}):
        assert map_tensors(batch, lambda tensor: tensor) is batch


def test_what_cannot_be_rebuilt_is_left_as_it_is() -> None:
    class Stubborn(dict[str, Any]):
        def __copy__(self) -> Stubborn:
            raise TypeError("one of a kind")

    def generated() -> Iterator[torch.Tensor]:
        yield one(1)

    circle: list[Any] = [one(1)]
    circle.append(circle)
    model = torch.nn.Linear(1, 1)
    for batch in (Stubborn(x=one(1)), generated(), model, Frozen(x=one(1)), object(), torch.Generator, "text", circle, 3):
        add_one([batch])
    frozen = Frozen(x=one(1))
    assert add_one(frozen) is frozen
    assert add_one(model) is model


def test_an_error_of_the_function_is_raised() -> None:
    def fails(_: torch.Tensor) -> torch.Tensor:
        raise MemoryError

    for batch in ({"x": one(1)}, Pair(one(1), 1), Graph(one(1)), Rows({"x": one(1)}, "n"), Strict(x=one(1))):
        with pytest.raises(MemoryError):
            map_tensors(batch, fails)


def test_named_results_of_torch_keep_their_class() -> None:
    found = add_one(torch.max(torch.ones(1, 2), 1))
    assert type(found) is torch.return_types.max
    assert float(found.values[0]) == 2


def test_a_packed_sequence_keeps_its_sizes() -> None:
    packed = pack_sequence([torch.ones(3, 1), torch.ones(2, 1)])
    mapped = map_tensors(packed, lambda tensor: tensor.double())
    assert type(mapped) is PackedSequence
    assert mapped.batch_sizes is packed.batch_sizes
    assert mapped.data.dtype is torch.float64
    assert torch.nn.utils.rnn.pad_packed_sequence(mapped)[0].shape == (3, 2, 1)


def test_outputs_and_encodings_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    output = transformers.modeling_outputs.SequenceClassifierOutput(logits=one(1), hidden_states=(one(2), one(3)))
    mapped = add_one(output)
    assert type(mapped) is type(output)
    assert mapped["logits"] is mapped.logits
    assert mapped.loss is None
    assert values(mapped.to_tuple()) == [2.0, 3.0, 4.0]
    encoding = add_one(transformers.BatchEncoding({"input_ids": one(1)}))
    assert type(encoding) is transformers.BatchEncoding
    assert values(encoding) == [2.0]


LAYOUTS: dict[str, Callable[[float], torch.Tensor]] = {
    "sparse": lambda value: (torch.eye(20) * value).to_sparse(),
    "uncoalesced": lambda value: torch.sparse_coo_tensor(torch.tensor([[0, 0]]), torch.ones(2) * value, (3,)),
    "rows": lambda value: (torch.eye(20) * value).to_sparse_csr(),
    "columns": lambda value: (torch.eye(20) * value).to_sparse_csc(),
    "jagged": lambda value: torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3) * value], layout=torch.jagged),
    "nested": lambda value: torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3) * value]),
    "complex": lambda value: torch.ones(3, dtype=torch.complex64) * complex(0, value),
    "conjugate": lambda value: (torch.ones(3, dtype=torch.complex64) * complex(0, value)).conj(),
    "quantized": lambda value: torch.quantize_per_tensor(torch.ones(3) * value, 0.1, 0, torch.qint8),
    "scalar": torch.tensor,
    "half": lambda value: torch.tensor([value], dtype=torch.bfloat16),
    "transposed": lambda value: torch.ones(3, 2).t() * value,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LAYOUTS)
def test_tensors_of_any_layout(name: str) -> None:
    make = LAYOUTS[name]
    batch = {"x": make(1.0), "n": 3}
    assert content(batch) == content({"x": make(1.0), "n": 3})
    assert content(batch) != content({"x": make(2.0), "n": 3})
    assert numbers_of(make(1.0)).dtype is torch.float32
    assert not torch.equal(numbers_of(make(1.0)), numbers_of(make(2.0)))
    assert batch_bytes(batch) > 0
    assert kept_length(batch) is None
    assert cut_at(batch, 20, 5) is batch or name == "transposed"
    assert tails(batch, 20, 5) == []
    padded_length(batch, 20)


def test_the_content_of_any_container_is_compared() -> None:
    batch = pack_sequence([torch.ones(3, 1), torch.ones(2, 1)])
    assert content(batch) == content(copy.deepcopy(batch))
    assert content(batch) != content(pack_sequence([torch.ones(4, 1), torch.ones(1, 1)]))
    assert content(Rows({"x": one(1)}, "a")) != content(Rows({"x": one(1)}, "b"))
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
        content([lambda: 0, iter(())])


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
