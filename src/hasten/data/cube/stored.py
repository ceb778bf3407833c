"""Arrays as files store them: raw values, read in blocks that do not depend on each other."""

from __future__ import annotations

import math
import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hasten.core.errors import CorruptError

Raw = NDArray[Any]
Block = tuple[slice, ...]
"""One range per axis of an array."""


@dataclass(frozen=True, kw_only=True)
class Stored(ABC):
    """One array of one file. It keeps no file open, so it can be sent to other processes.

    Attributes:
        path: The file, or the folder of a Zarr store.
        name: Name of the array in the file.
        dims: Names of its dimensions.
        shape: Size of each dimension.
        dtype: Type of the raw values, with their byte order.
        attrs: Attributes in plain types: text, NumPy scalars and arrays.
        grain: Shape of the smallest part that can be read efficiently, such as a chunk.
        way: How it is read, and why.
    """

    path: Path
    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    attrs: Mapping[str, Any]
    grain: tuple[int, ...]
    way: str

    block_bytes: ClassVar[int] = 2**22
    """Maximum size of a block, unless the grain is larger."""
    step_bytes: ClassVar[int] = 2**26
    """What to read at once, as float32, if it is then regridded: enough chunks for all threads."""

    @abstractmethod
    def load(self, block: Block) -> Raw:
        """Return the raw values of a block. Several threads may call it at the same time.

        Raises:
            CorruptError: The bytes are missing, truncated or modified.
        """

    def load_into(self, block: Block, out: Raw) -> Raw:
        """Return the raw values of a block: `out`, which has their shape and type, if this saves a copy."""
        return self.load(block)

    def blocks(self, start: int, stop: int) -> list[Block]:
        """Divide `start` to `stop` of the first axis, and all of the other axes, into blocks that end where grains end."""
        budget = self.block_bytes // self.dtype.itemsize // math.prod(self.grain)
        cuts = []
        spans = [(start, stop), *((0, size) for size in self.shape[1:])]
        for (first, last), grain in zip(reversed(spans), reversed(self.grain), strict=True):
            grains = max(1, min(budget, -(-last // grain) - first // grain))
            budget //= grains
            step = grains * grain
            edges = [first, *range((first // step + 1) * step, last, step), last]
            cuts.append([slice(*pair) for pair in pairwise(edges)])
        return list(product(*reversed(cuts)))

    def whole(self, times: int) -> int:
        """Return at most this many times of the first axis, in whole grains, or one grain if it has more."""
        return max(times // self.grain[0], 1) * self.grain[0]

    def all(self) -> Raw:
        """Return all raw values, for coordinates and other small arrays."""
        return np.array(self.load(tuple(slice(0, size) for size in self.shape)))

    @property
    def where(self) -> str:
        """The file and the variable, for messages."""
        return f"{self.path}: {self.name}"


@dataclass(frozen=True, kw_only=True)
class Direct(Stored):
    """An array whose values are in the file as they are.

    Attributes:
        offset: Where the first value is, in bytes.
        strides: Distance of neighbours along each axis, in bytes.
    """

    offset: int
    strides: tuple[int, ...]

    block_bytes: ClassVar[int] = 2**24
    step_bytes: ClassVar[int] = 2**24
    """One block, so one thread: memory is soon at its limit, and threads that read delay those that regrid."""

    def load(self, block: Block) -> Raw:
        """Return the values of a block: read at once where they lie together, which is faster, and else mapped."""
        first, length, shape = self._range(block)
        if length == math.prod(shape) * self.dtype.itemsize:
            return self.load_into(block, np.empty(shape, self.dtype))
        try:
            skip = first % mmap.ALLOCATIONGRANULARITY
            with self.path.open("rb") as file:
                mapped = mmap.mmap(file.fileno(), skip + length, access=mmap.ACCESS_READ, offset=first - skip)
        except (OSError, ValueError) as error:  # ValueError: the range is beyond the end of the file
            raise CorruptError(f"{self.where}: bytes {first:,} to {first + length:,} cannot be read: {error}.") from error
        return np.ndarray(shape, self.dtype, mapped, skip, self.strides)

    def load_into(self, block: Block, out: Raw) -> Raw:
        """Read values that lie together into `out`."""
        first, length, _ = self._range(block)
        if length != out.nbytes or not out.flags.c_contiguous:
            return self.load(block)
        try:
            with self.path.open("rb", buffering=0) as file:
                read = os.preadv(file.fileno(), [out.reshape(-1).view(np.uint8).data], first)
        except OSError as error:
            raise CorruptError(f"{self.where}: bytes {first:,} to {first + length:,} cannot be read: {error}.") from error
        if read != length:
            raise CorruptError(f"{self.where}: bytes {first + read:,} to {first + length:,} are missing.")
        return out

    def _range(self, block: Block) -> tuple[int, int, tuple[int, ...]]:
        """Return the first byte of a block, its bytes from first to last value, and its shape."""
        shape = tuple(part.stop - part.start for part in block)
        first = self.offset + sum(part.start * stride for part, stride in zip(block, self.strides, strict=True))
        length = sum((size - 1) * stride for size, stride in zip(shape, self.strides, strict=True)) + self.dtype.itemsize
        return first, length, shape


def plain(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes with text as `str`, and arrays of one value as that value."""
    return {str(name): _plain(value) for name, value in attrs.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.reshape(())[()]
    return value.decode("utf-8", "replace").strip("\0 ") if isinstance(value, bytes) else value
