"""Convert samples of plain data to rows of a store, and back.

Parts that are uniform across all samples (a tensor of one type and shape, a number) become raw columns, and text becomes an
Arrow column, so that a batch takes one gather per column. If samples are not uniform, each is stored as a whole record,
without pickle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import torch

from hasten.core.records import decode, encode

Leaf: TypeAlias = tuple[str, str, tuple[int, ...]]
"""Kind of a leaf (`tensor`, `array`, `int`, `float`, `bool`, `str`), its type and its shape."""
_RECORD = "record"
_NUMBERS: dict[type, str] = {bool: "bool", int: "int64", float: "float64"}


class UnlikeError(Exception):
    """A sample does not match the layout."""


@dataclass(frozen=True)
class RowLayout:
    """Map samples to columns.

    Attributes:
        tree: Nesting of the samples, with leaves replaced by their numbers; None stores each sample as a record.
        leaves: Kind, type and shape of each leaf.
    """

    tree: Any
    leaves: tuple[Leaf, ...]

    @classmethod
    def of(cls, samples: Sequence[Any]) -> RowLayout:
        """Choose the layout that fits these samples."""
        chosen: list[Leaf] = []
        first, leaves = _flattened(samples[0])
        kinds = [_leaf(leaf) for leaf in leaves]
        for sample in samples[1:]:
            tree, others = _flattened(sample)
            if tree != first or [_leaf(leaf) for leaf in others] != kinds:
                return cls(None, ())
        for kind in kinds:
            if kind is None:
                return cls(None, ())
            chosen.append(kind)
        return cls(first, tuple(chosen)) if chosen else cls(None, ())

    def rows(self, samples: Sequence[Any]) -> dict[str, Any]:
        """Convert samples to columns.

        Raises:
            UnlikeError: A sample does not match the layout.
            TypeError: A sample is not plain data; the message names the type.
        """
        if self.tree is None:
            return {_RECORD: pa.array([encode(sample) for sample in samples], pa.large_binary())}
        columns: list[list[Any]] = [[] for _ in self.leaves]
        for sample in samples:
            tree, leaves = _flattened(sample)
            if tree != self.tree or tuple(_leaf(leaf) for leaf in leaves) != self.leaves:
                raise UnlikeError("a sample does not match the layout")
            for column, leaf in zip(columns, leaves, strict=True):
                column.append(leaf)
        return {f"c{n}": _column(values, leaf) for n, (values, leaf) in enumerate(zip(columns, self.leaves, strict=True))}

    def samples(self, taken: dict[str, Any], count: int) -> list[Any]:
        """Convert columns read from a store to samples, each with its own memory or a view of the batch's."""
        if self.tree is None:
            return [decode(bytearray(record.as_buffer())) for record in taken[_RECORD]]
        columns = [_plain(taken[f"c{number}"], leaf) for number, leaf in enumerate(self.leaves)]
        return [_filled(self.tree, [column[row] for column in columns]) for row in range(count)]


def _flattened(sample: Any) -> tuple[Any, list[Any]]:
    """Return a sample's nesting, and its leaves in order."""
    leaves: list[Any] = []

    def node(value: Any) -> Any:
        if type(value) is dict:
            return ("dict", tuple((key, node(item)) for key, item in value.items()))
        if type(value) in {list, tuple}:
            return (type(value).__name__, tuple(node(item) for item in value))
        leaves.append(value)
        return len(leaves) - 1

    return node(sample), leaves


def _filled(tree: Any, leaves: list[Any]) -> Any:
    if isinstance(tree, int):
        return leaves[tree]
    kind, parts = tree
    if kind == "dict":
        return {key: _filled(part, leaves) for key, part in parts}
    items = [_filled(part, leaves) for part in parts]
    return items if kind == "list" else tuple(items)


def _leaf(value: Any) -> Leaf | None:
    """Describe a leaf; return None if no column can store it exactly."""
    if type(value) in _NUMBERS:
        return type(value).__name__, _NUMBERS[type(value)], ()
    if type(value) is str:
        return "str", "string", ()
    if type(value) is torch.Tensor:
        plain = (
            value.device.type == "cpu"
            and value.is_contiguous()
            and not value.requires_grad
            and value.layout is torch.strided
        )
        name = str(value.dtype).removeprefix("torch.")
        return ("tensor", name, tuple(value.shape)) if plain and _in_numpy(name) else None
    if type(value) is np.ndarray:
        plain = value.dtype.kind in "biuf" and value.flags.c_contiguous and value.dtype.isnative
        return ("array", value.dtype.name, value.shape) if plain else None
    return None


def _in_numpy(name: str) -> bool:
    return name in {"bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"}


def _column(values: list[Any], leaf: Leaf) -> Any:
    kind, dtype, _ = leaf
    if kind == "str":
        return pa.array(values, pa.string())
    if kind == "tensor":
        return torch.stack(values).numpy()
    return np.stack(values) if kind == "array" else np.array(values, dtype)


def _plain(column: Any, leaf: Leaf) -> Any:
    kind, _, _ = leaf
    if kind == "str":
        return column.to_pylist()
    if kind == "tensor":
        return torch.from_numpy(column)
    return column if kind == "array" else column.tolist()
