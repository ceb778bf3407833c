"""Pick rows from several Arrow blocks at once, copying each byte once.

`pyarrow.compute.take` first copies all blocks of a chunked text array into one, even to pick a few hundred rows. But the
blocks are mapped files in one address space, so the rows of several blocks can be described as one long array without a
copy. Its data starts at the lowest block, its offsets reach into all blocks, and an unused row separates the rows of one
block from those of the next. Arrow's `take` picks rows from that array and releases the GIL. Types without such ranges
(numbers, booleans, and rare types such as dictionaries and unions) are picked from a copy of their blocks.

In this module `at` is the number of a row, counted through all arrays of a column, and `before` is the number of arrays
before the row's own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hasten.core.errors import CorruptError, DataError

Index: TypeAlias = npt.NDArray[np.int64]
"""Numbers of rows or samples."""


class Picker(ABC):
    """Pick rows from a column of several blocks."""

    @abstractmethod
    def take(self, at: Index, before: Index) -> pa.Array:
        """Return the rows in the requested order, as an array with its own memory, [rows]."""

    def strings(self, at: Index, before: Index) -> list[str | None]:
        """Return the rows of a text column as strings, [rows].

        Raises:
            DataError: The column does not contain text.
        """
        picked = self.take(at, before)
        if not (pa.types.is_string(picked.type) or pa.types.is_large_string(picked.type)):
            raise DataError(f"a column of {picked.type} does not contain strings: request text columns only.")
        strings: list[str | None] = picked.to_pylist()
        return strings


def picker(arrays: Sequence[pa.Array]) -> Picker:
    """Return a picker for these arrays. There must be at least one, and all must have the same type."""
    kind = arrays[0].type
    if any(array.offset for array in arrays):
        return _Copied(arrays)
    if is_bytes(kind) or (is_list(kind) and _is_plain(kind.value_type) and not any(a.values.null_count for a in arrays)):
        return _Ranges(arrays)
    if is_list(kind):
        return _Lists(arrays)
    if pa.types.is_struct(kind) and kind.num_fields:
        return _Structs(arrays)
    return _Copied(arrays)


class _Ranges(Picker):
    """Pick text, bytes, and lists of numbers: each row is a range of bytes."""

    def __init__(self, arrays: Sequence[pa.Array]) -> None:
        self._type = arrays[0].type
        self._wide = _is_wide(self._type)
        self._is_list = is_list(self._type)
        self._item = self._type.value_type.bit_width // 8 if self._is_list else 1
        self._rows = _spanning(arrays, self._item)
        self._valid = _validity(arrays)

    def take(self, at: Index, before: Index) -> pa.Array:
        if not len(at):
            return pa.array([], self._type)
        _, offsets, data = pc.take(self._rows, _indices(at + before + 1)).buffers()
        if self._item > 1 or not self._wide:
            offsets = _narrow(np.frombuffer(offsets, np.int64, len(at) + 1), self._item, wide=self._wide)
        mask = _bitmap(self._valid, at)
        if not self._is_list:
            return pa.Array.from_buffers(self._type, len(at), [mask, offsets, data])
        values = pa.Array.from_buffers(self._type.value_type, data.size // self._item, [None, data])
        return pa.Array.from_buffers(self._type, len(at), [mask, offsets], children=[values])


class _Lists(Picker):
    """Pick lists of any type: each row is a range of rows of another column."""

    def __init__(self, arrays: Sequence[pa.Array]) -> None:
        self._type = arrays[0].type
        self._wide = _is_wide(self._type)
        self._values = picker([a.values for a in arrays])
        sizes = np.array([len(a.values) for a in arrays], dtype=np.int64)
        offsets = [_offsets(a, wide=self._wide) + first for a, first in zip(arrays, np.cumsum(sizes) - sizes, strict=True)]
        self._starts = np.concatenate([part[:-1] for part in offsets])
        self._stops = np.concatenate([part[1:] for part in offsets])
        self._valid = _validity(arrays)

    def take(self, at: Index, before: Index) -> pa.Array:
        starts, lengths = self._starts[at], self._stops[at] - self._starts[at]
        ends = np.cumsum(lengths)
        inner = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(starts - (ends - lengths), lengths)
        buffers = [_bitmap(self._valid, at), _narrow(_from_lengths(lengths), 1, wide=self._wide)]
        return pa.Array.from_buffers(
            self._type, len(at), buffers, children=[self._values.take(inner, np.repeat(before, lengths))]
        )


class _Structs(Picker):
    """Pick structs, field by field."""

    def __init__(self, arrays: Sequence[pa.Array]) -> None:
        self._type = arrays[0].type
        self._fields = [picker([a.field(number) for a in arrays]) for number in range(self._type.num_fields)]
        self._valid = _validity(arrays)

    def take(self, at: Index, before: Index) -> pa.Array:
        children = [field.take(at, before) for field in self._fields]
        return pa.Array.from_buffers(self._type, len(at), [_bitmap(self._valid, at)], children=children)


class _Copied(Picker):
    """Pick rows of any other type from a copy of the blocks."""

    def __init__(self, arrays: Sequence[pa.Array]) -> None:
        self._whole = pa.concat_arrays(list(arrays))

    def take(self, at: Index, before: Index) -> pa.Array:
        return pc.take(self._whole, _indices(at))


def _indices(rows: Index) -> pa.Array:
    """Convert row numbers to an Arrow array. `pa.array` would import pandas if it is installed, and use megabytes for it."""
    return pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(rows)])


def row_lengths(array: pa.Array) -> Index:
    """Return the length of each row of text, bytes (in bytes) or lists (in items), [rows]. Null has length 0."""
    lengths = pc.list_value_length(array) if is_list(array.type) else pc.binary_length(array)
    numbers: Index = lengths.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers


def is_bytes(kind: pa.DataType) -> bool:
    """Return True if rows of this type are text or bytes."""
    types = pa.types
    return bool(types.is_string(kind) or types.is_binary(kind) or types.is_large_string(kind) or types.is_large_binary(kind))


def is_list(kind: pa.DataType) -> bool:
    """Return True if rows of this type are lists of variable length."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _is_plain(kind: pa.DataType) -> bool:
    return bool(pa.types.is_primitive(kind)) and kind.bit_width >= 8


def _is_wide(kind: pa.DataType) -> bool:
    return bool(pa.types.is_large_string(kind) or pa.types.is_large_binary(kind) or pa.types.is_large_list(kind))


def _spanning(arrays: Sequence[pa.Array], item: int) -> pa.Array:
    """Return the bytes of the rows of all arrays as one array with 64-bit offsets.

    Row r, counted through all arrays, is at position 1 + b + r, where b is the number of arrays before its own. An item has
    `item` bytes.

    The array spans from the lowest address of any array to the highest, and never reads the memory between them.

    Raises:
        CorruptError: A row extends beyond its own array; Arrow would read past the end.
    """
    buffers = [a.values.buffers()[1] if is_list(a.type) else a.buffers()[2] for a in arrays]
    there = [buffer for buffer in buffers if buffer is not None and buffer.size]
    base = min((buffer.address for buffer in there), default=0)
    size = max((buffer.address + buffer.size for buffer in there), default=base) - base
    parts, num_bytes = [np.zeros(1, np.int64)], 0
    for array, buffer in zip(arrays, buffers, strict=True):
        offsets = _offsets(array, wide=_is_wide(array.type)) * item
        if offsets[0] < 0 or offsets[-1] > (buffer.size if buffer is not None else 0) or (np.diff(offsets) < 0).any():
            raise CorruptError("a row of a block extends beyond the block")
        num_bytes += int(offsets[-1] - offsets[0])
        parts.append(offsets + (buffer.address - base if buffer is not None and buffer.size else 0))
    # Arrow allocates by the mean row length, from the first offset to the last. Memory between the arrays must not count,
    # so these two offsets are set to what they would be without it. They belong to rows that are never picked.
    rows = sum(map(len, parts))
    room = num_bytes + num_bytes // 8  # avoids reallocation for batches with longer rows than the mean
    parts.append(np.array([room], dtype=np.int64))
    data = pa.foreign_buffer(base, max(size, room), base=tuple(arrays)) if size else pa.py_buffer(b"")
    return pa.Array.from_buffers(pa.large_binary(), rows, [None, pa.py_buffer(np.concatenate(parts)), data])


def _offsets(array: pa.Array, *, wide: bool) -> Index:
    """Return the start of each row, followed by the end of the last one, [rows + 1]."""
    buffer = array.buffers()[1]
    if not len(array) or buffer is None:
        return np.zeros(len(array) + 1, np.int64)
    return np.frombuffer(buffer, np.int64 if wide else np.int32, len(array) + 1).astype(np.int64)


def _from_lengths(lengths: Index) -> Index:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _narrow(offsets: Index, item: int, *, wide: bool) -> pa.Buffer:
    """Convert offsets in bytes to offsets in items, with the width of the type.

    Raises:
        DataError: The offsets do not fit the type.
    """
    if item > 1:
        offsets = offsets // item
    if not wide:
        if offsets[-1] > np.iinfo(np.int32).max:
            raise DataError(
                f"a batch of {len(offsets) - 1} rows has {int(offsets[-1]):,} bytes or items in one column, more than "
                f"Arrow's 32-bit offsets can address: use a smaller batch, or convert with a large type."
            )
        return pa.py_buffer(offsets.astype(np.int32))
    return pa.py_buffer(offsets)


def _validity(arrays: Sequence[pa.Array]) -> npt.NDArray[np.bool_] | None:
    """Return True for each row with a value, [rows]; None if there are no nulls."""
    if not any(array.null_count for array in arrays):
        return None
    return np.concatenate([array.is_valid().to_numpy(zero_copy_only=False).astype(bool) for array in arrays])


def _bitmap(valid: npt.NDArray[np.bool_] | None, at: Index) -> Any:
    if valid is None:
        return None
    picked = valid[at]
    return None if picked.all() else pa.py_buffer(np.packbits(picked, bitorder="little"))
