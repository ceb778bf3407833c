"""What a set of files with gridded data holds, and the one call that reads it.

    cube = open_cube([Path("january.nc"), Path("february.nc")])
    cube.variables["temperature"].axes[0].units    # "hours since 2000-01-01"
    cube.read("temperature", 0, 24)                # float32 [time, level, latitude, longitude], missing values are NaN

Values are read in blocks: `read` needs its output and a few megabytes a thread, however large the files are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from difflib import get_close_matches

import numpy as np
import torch
from numpy.typing import NDArray

from hasten.core.errors import DataError
from hasten.data.cube.axes import Axis
from hasten.data.cube.cf import Packing
from hasten.data.cube.stored import Block, Stored


@dataclass(frozen=True, kw_only=True)
class Variable:
    """One variable, decoded: float32, with NaN for missing values.

    Attributes:
        name: Its name in the files.
        standard_name: Its name by the CF conventions, such as `air_temperature`. Empty if the files do not say.
        units: Units of the decoded values, as stored. Empty if the files do not say.
        axes: Time, level (if it has one), latitude, longitude.
        shape: Size of each axis.
        way: How its values are read, and why.
    """

    name: str
    standard_name: str
    units: str
    axes: tuple[Axis, ...]
    shape: tuple[int, ...]
    way: str


@dataclass(frozen=True)
class Part:
    """The part of a variable that one file holds."""

    stored: Stored
    packing: Packing

    def fill(self, block: Block, out: NDArray[np.float32]) -> None:
        """Read and decode a block."""
        same = out.dtype == self.stored.dtype and out.flags.c_contiguous
        self.packing.decode(self.stored.load_into(block, out) if same else self.stored.load(block), out)


_CHUNKS_BYTES = 2**30
"""Memory for chunks that are decoded at the same time. A larger chunk is decoded alone."""
_Work = tuple[Part, Block, NDArray[np.float32]]


class Cube:
    """Variables of one or more files, joined along time. Made by `open_cube`. It can be sent to other processes.

    Attributes:
        variables: What can be read.
        left_out: Why other arrays of the files cannot be read.
    """

    def __init__(
        self, variables: Mapping[str, Variable], parts: Mapping[str, Sequence[Part]], left_out: Mapping[str, str]
    ) -> None:
        self.variables = variables
        self.left_out = left_out
        self._parts = parts

    def read(self, name: str, start: int, stop: int, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """Return the times from `start` to before `stop` of a variable. Several threads may call it at the same time.

        Blocks are decoded by `torch.get_num_threads()` threads: one inside of a DataLoader's worker.

        Args:
            name: Name of the variable.
            start: Index of the first time.
            stop: Index after the last time.
            out: Where to write the values. None for a new array.

        Returns:
            Values in the order of the variable's axes, [time, level, latitude, longitude] or [time, latitude, longitude].

        Raises:
            CorruptError: Bytes of a file are missing, truncated or modified.
            DataError: There is no such variable or time, or `out` has another shape or type.
        """
        if name not in self.variables:
            raise DataError(missing(name, self.variables, self.left_out))
        times, *grid = self.variables[name].shape
        if not 0 <= start < stop <= times:
            raise DataError(f"{name} has the times 0 to {times:,}: {start:,} to {stop:,} is not a part of them.")
        shape = (stop - start, *grid)
        if out is None:
            try:
                out = np.empty(shape, np.float32)
            except (MemoryError, ValueError) as error:
                raise DataError(f"{name}: {shape} float32 do not fit into memory. Read fewer times at once.") from error
        elif out.shape != shape or out.dtype != np.float32:
            raise DataError(f"{name} needs an output of {shape} float32, not {out.shape} {out.dtype}.")
        work = list(self._work(name, start, stop, out))
        largest = max((math.prod(part.stored.grain) * part.stored.dtype.itemsize for part in self._parts[name]), default=1)
        threads = max(1, min(torch.get_num_threads(), len(work), _CHUNKS_BYTES // max(largest, 1)))
        if threads == 1:
            for part, block, target in work:
                part.fill(block, target)
        else:
            with ThreadPoolExecutor(threads) as pool:
                for _ in pool.map(lambda item: item[0].fill(*item[1:]), work):
                    pass
        return out

    def _work(self, name: str, start: int, stop: int, out: NDArray[np.float32]) -> Iterator[_Work]:
        """Yield the blocks to read, and where to write them."""
        begin = -start  # of the part, in `out`
        for part in self._parts[name]:
            first, last = max(-begin, 0), min(part.stored.shape[0], stop - start - begin)
            if first < last:
                for time, *grid in part.stored.blocks(first, last):
                    yield part, (time, *grid), out[(slice(begin + time.start, begin + time.stop), *grid)]
            begin += part.stored.shape[0]

    def files(self, name: str) -> list[Stored]:
        """Return the array of each file of a variable, in the order of time."""
        return [part.stored for part in self._parts[name]]


def missing(name: str, known: Mapping[str, object], left_out: Mapping[str, str]) -> str:
    """Say that there is no variable of this name, which ones are near, or why it is left out."""
    if name in left_out:
        return left_out[name]
    near = get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"Is it {' or '.join(near)}?" if near else f"There are: {', '.join(known) or 'none'}."
    return f"There is no variable {name}. {hint}"
