"""Rows picked from several Arrow blocks at once, each byte copied once.

`pyarrow.compute.take` wants one contiguous array: to pick 256 rows of a window of 16 blocks it would first copy the window.
Here the bytes of the picked rows are joined straight from the mapped blocks, and the offsets follow from the lengths. So a
batch costs its own bytes and nothing else, in time and in memory. Types that are rarely met (dictionaries, unions, maps,
views) do go through `take`.

The arrays of a column are seen as one long column; `at` counts rows through all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import repeat
from operator import getitem
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upshift.core.errors import DataError

Index = npt.NDArray[np.int64]


class Picker(ABC):
    """A column of several blocks, to pick rows from."""

    @abstractmethod
    def take(self, at: Index) -> pa.Array:
        """The rows, in the order asked for, as an array of its own memory, [rows]."""

    def strings(self, at: Index) -> list[str | None]:
        """The rows of a text column as strings, [rows].

        Raises:
            DataError: The column holds no text.
        """
        picked = self.take(at)
        if not (pa.types.is_string(picked.type) or pa.types.is_large_string(picked.type)):
            raise DataError(f"a column of {picked.type} holds no strings: name text columns alone.")
        found: list[str | None] = picked.to_pylist()
        return found


def picker(arrays: Sequence[pa.Array]) -> Picker:
    """What picks rows from these arrays, which are of one type and at least one."""
    kind = arrays[0].type
    if any(array.offset for array in arrays):
        return _Other(arrays)
    if pa.types.is_primitive(kind) and kind.bit_width >= 8:
        return _Fixed(arrays)
    if _is_bytes(kind) or (_is_list(kind) and _is_plain(kind.value_type) and not any(a.values.null_count for a in arrays)):
        return _Ranges(arrays)
    if _is_list(kind):
        return _Lists(arrays)
    if pa.types.is_struct(kind) and kind.num_fields:
        return _Structs(arrays)
    return _Other(arrays)


class _Fixed(Picker):
    """Numbers, dates and times: as wide in every row."""

    def __init__(self, arrays: Sequence[pa.Array]) -> None:
        self._type = arrays[0].type
        width = np.dtype(f"u{self._type.bit_width // 8}")
        self._values = np.concatenate(
            [np.frombuffer(a.buffers()[1], width, len(a)) if len(a) else np.empty(0, width) for a in arrays]
        )
        self._valid = _validity(arrays)

    def take(self, at: Index) -> pa.Array:
        return pa.Array.from_buffers(self._type, len(at), [_bitmap(self._valid, at), pa.py_buffer(self._values[at])])


class _Ranges(Picker):
    """Text, bytes, and lists of numbers: a range of bytes a row."""

    def __init__(self, arrays: Sequence[pa.Array]) -> None:
        self._type = arrays[0].type
        self._wide = _is_wide(self._type)
        self._is_list = _is_list(self._type)
        self._item = self._type.value_type.bit_width // 8 if self._is_list else 1
        self._views = [_bytes_of(a.values.buffers()[1] if self._is_list else a.buffers()[2]) for a in arrays]
        self._ends = np.cumsum([len(a) for a in arrays])
        offsets = [_offsets(a, wide=self._wide) for a in arrays]
        self._starts = np.concatenate([part[:-1] for part in offsets]) * self._item
        self._stops = np.concatenate([part[1:] for part in offsets]) * self._item
        self._valid = _validity(arrays)

    def take(self, at: Index) -> pa.Array:
        starts, stops = self._starts[at], self._stops[at]
        data = b"".join(self._slices(at, starts, stops))
        offsets = _joined_offsets(stops - starts, self._item, wide=self._wide)
        mask = _bitmap(self._valid, at)
        if not self._is_list:
            return pa.Array.from_buffers(self._type, len(at), [mask, offsets, pa.py_buffer(data)])
        values = pa.Array.from_buffers(self._type.value_type, len(data) // self._item, [None, pa.py_buffer(data)])
        return pa.Array.from_buffers(self._type, len(at), [mask, offsets], children=[values])

    def strings(self, at: Index) -> list[str | None]:
        if not (pa.types.is_string(self._type) or pa.types.is_large_string(self._type)):
            return super().strings(at)
        found: list[str | None] = list(map(str, self._slices(at, self._starts[at], self._stops[at]), repeat("utf-8")))
        if self._valid is not None:
            for row in np.flatnonzero(~self._valid[at]).tolist():
                found[row] = None
        return found

    def _slices(self, at: Index, starts: Index, stops: Index) -> list[memoryview]:
        """A view of the bytes of each row; by `map`, since this line is most of what a batch costs besides its bytes."""
        cut: Callable[[Any, Any], Any] = getitem
        cuts = map(slice, starts.tolist(), stops.tolist())
        if len(self._views) == 1:
            return list(map(cut, repeat(self._views[0]), cuts))
        owners = np.searchsorted(self._ends, at, side="right").tolist()
        return list(map(cut, map(self._views.__getitem__, owners), cuts))


class _Lists(Picker):
    """Lists of whatever: a range of the rows of another column."""

    def __init__(self, arrays: Sequence[pa.Array]) -> None:
        self._type = arrays[0].type
        self._wide = _is_wide(self._type)
        self._values = picker([a.values for a in arrays])
        sizes = np.array([len(a.values) for a in arrays], dtype=np.int64)
        offsets = [_offsets(a, wide=self._wide) + first for a, first in zip(arrays, np.cumsum(sizes) - sizes, strict=True)]
        self._starts = np.concatenate([part[:-1] for part in offsets])
        self._stops = np.concatenate([part[1:] for part in offsets])
        self._valid = _validity(arrays)

    def take(self, at: Index) -> pa.Array:
        starts, lengths = self._starts[at], self._stops[at] - self._starts[at]
        ends = np.cumsum(lengths)
        inner = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(starts - (ends - lengths), lengths)
        buffers = [_bitmap(self._valid, at), _joined_offsets(lengths, 1, wide=self._wide)]
        return pa.Array.from_buffers(self._type, len(at), buffers, children=[self._values.take(inner)])


class _Structs(Picker):
    """Records: columns side by side."""

    def __init__(self, arrays: Sequence[pa.Array]) -> None:
        self._type = arrays[0].type
        self._fields = [picker([a.field(number) for a in arrays]) for number in range(self._type.num_fields)]
        self._valid = _validity(arrays)

    def take(self, at: Index) -> pa.Array:
        children = [field.take(at) for field in self._fields]
        return pa.Array.from_buffers(self._type, len(at), [_bitmap(self._valid, at)], children=children)


class _Other(Picker):
    """Any other type: through a copy of its blocks."""

    def __init__(self, arrays: Sequence[pa.Array]) -> None:
        self._whole = pa.concat_arrays(list(arrays))

    def take(self, at: Index) -> pa.Array:
        return self._whole.take(pa.array(at))


def _is_bytes(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_string(kind) or types.is_binary(kind) or types.is_large_string(kind) or types.is_large_binary(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _is_plain(kind: pa.DataType) -> bool:
    return bool(pa.types.is_primitive(kind)) and kind.bit_width >= 8


def _is_wide(kind: pa.DataType) -> bool:
    return bool(pa.types.is_large_string(kind) or pa.types.is_large_binary(kind) or pa.types.is_large_list(kind))


def _bytes_of(buffer: pa.Buffer | None) -> memoryview:
    return memoryview(b"" if buffer is None else buffer)


def _offsets(array: pa.Array, *, wide: bool) -> Index:
    """Where each row begins, then where the last one ends, [rows + 1]."""
    buffer = array.buffers()[1]
    if not len(array) or buffer is None:
        return np.zeros(len(array) + 1, np.int64)
    return np.frombuffer(buffer, np.int64 if wide else np.int32, len(array) + 1).astype(np.int64)


def _joined_offsets(lengths: Index, item: int, *, wide: bool) -> pa.Buffer:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths // item if item > 1 else lengths, out=offsets[1:])
    if not wide:
        if offsets[-1] > np.iinfo(np.int32).max:
            raise DataError(
                f"a batch of {len(lengths)} rows holds {int(offsets[-1]):,} bytes or items in one column, more than Arrow's "
                f"32-bit offsets reach: use a smaller batch, or convert with a large type."
            )
        offsets = offsets.astype(np.int32)
    return pa.py_buffer(offsets)


def _validity(arrays: Sequence[pa.Array]) -> npt.NDArray[np.bool_] | None:
    """Which rows hold a value, [rows]; None where all do."""
    if not any(array.null_count for array in arrays):
        return None
    return np.concatenate([array.is_valid().to_numpy(zero_copy_only=False).astype(bool) for array in arrays])


def _bitmap(valid: npt.NDArray[np.bool_] | None, at: Index) -> Any:
    if valid is None:
        return None
    picked = valid[at]
    return None if picked.all() else pa.py_buffer(np.packbits(picked, bitorder="little"))
