"""All variables of a cube as samples of one shape, on one grid.

    fields = Fields(open_cube(paths), grid=(64, 64))
    fields.read(0, 24)        # float32 [time, channel, latitude, longitude]

Few times are read at once, so that memory stays bounded: the result, and `Stored.step_bytes` for each variable in turn, or
the chunks that one time needs if these are larger.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from hasten.core.errors import DataError
from hasten.data.cube.axes import difference, in_units
from hasten.data.cube.channels import Channel, channels_of
from hasten.data.cube.cube import Cube
from hasten.data.cube.regrid import Grid, Method, regridder

TIME_UNITS = "seconds since 1970-01-01"


class Fields:
    """Read a cube time by time, with all its variables and levels as channels.

    Args:
        cube: The cube.
        variables: Names of the variables, in the order wanted. None for all.
        grid: Rows and columns of equal cells over the area of the files, from north to south and from west to east, or a
            grid. None keeps the grid of the files.
        method: How values are regridded: see `regrid`.

    Attributes:
        cube: The cube.
        variables: Its variables that are read.
        channels: What each channel is.
        grid: Grid of the result.
        times: Times, [time]: files may count from different dates, so they are converted to seconds since 1970. Times that
            are plain numbers, such as months, are as stored.
        time_units: Their units.
        calendar: Their calendar; None if the times are plain numbers.

    Raises:
        DataError: Variables differ in their times or grids, or cannot be regridded.
    """

    def __init__(
        self,
        cube: Cube,
        *,
        variables: Sequence[str] | None = None,
        grid: Grid | tuple[int, int] | None = None,
        method: Method = "auto",
    ) -> None:
        self.channels: tuple[Channel, ...] = channels_of(cube, variables)
        self.cube = cube
        self.variables = [cube.variables[name] for name in dict.fromkeys(channel.variable for channel in self.channels)]
        first, *others = self.variables
        for other in others:
            for axis, same in ((first.axes[at], other.axes[at]) for at in (0, -2, -1)):
                if differs := difference(axis, same):
                    raise DataError(
                        f"{cube.files(other.name)[0].path}: the {axis.role} of {first.name} and {other.name} differs: "
                        f"{differs}. Choose variables that share one grid, or regrid the files to one grid first."
                    )
        time, latitude, longitude = (first.axes[at] for at in (0, -2, -1))
        self.calendar = time.calendar
        self.time_units = time.units if time.calendar is None else TIME_UNITS
        self.times = in_units(time, self.time_units)
        source = Grid(tuple(latitude.values.tolist()), tuple(longitude.values.tolist()))
        self.grid = source if grid is None else grid if isinstance(grid, Grid) else Grid.over(source, *grid)
        self._regrid = None if self.grid == source else regridder(source, self.grid, method)

    def __len__(self) -> int:
        """Return the number of times."""
        return len(self.times)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Number of channels, latitudes and longitudes of one time."""
        return (len(self.channels), *self.grid.shape)

    def read(self, start: int, stop: int, out: torch.Tensor | None = None) -> torch.Tensor:
        """Return the times from `start` to before `stop`, float32 [time, channel, latitude, longitude]. Missing is NaN.

        Args:
            start: Index of the first time.
            stop: Index after the last time.
            out: Where to write the values. None for a new tensor.

        Raises:
            CorruptError: Bytes of a file are missing, truncated or modified.
            DataError: There are no such times, or a variable has no value in all of them.
        """
        if out is None:
            out = torch.empty(stop - start, *self.shape)
        steps = {variable.name: self._steps(variable.name, start, stop) for variable in self.variables}
        sizes_of_reads = [
            (last - first) * math.prod(variable.shape[1:])
            for variable in self.variables
            for first, last in steps[variable.name]
        ]
        buffer = np.empty(max(sizes_of_reads), np.float32)  # reused: the pages of new memory cost as much as reading
        channel = 0
        for variable in self.variables:
            name, (_, *sizes) = variable.name, variable.shape
            levels = sizes[0] if len(sizes) == 3 else 1
            target = out[:, channel : channel + levels]
            channel += levels
            for first, last in steps[name]:
                part = buffer[: (last - first) * math.prod(sizes)].reshape(last - first, *sizes)
                values = torch.from_numpy(self.cube.read(name, first, last, part)).view(-1, levels, *sizes[-2:])
                target[first - start : last - start] = values if self._regrid is None else self._regrid(values)
            if bool(target.isnan().all()):
                where = self.cube.files(name)[0].path
                raise DataError(
                    f"{where}: {name} has only missing values in the times {start:,} to {stop - 1:,}. "
                    "Leave it out: name the other variables."
                )
        return out

    def starts(self, length: int, *, stride: int = 1, first: int = 0, stop: int | None = None) -> list[int]:
        """Return the first time of each window of consecutive times. No window spans a gap (see `gaps`).

        Args:
            length: Times of a window.
            stride: Times between the starts of two windows.
            first: First time of the first window.
            stop: Time after the last. None for all.

        Raises:
            DataError: There is no such window.
        """
        if length < 1 or stride < 1:
            raise DataError(f"length and stride of windows must be at least 1, not {length} and {stride}.")
        stop = len(self) if stop is None else stop
        starts, after = np.arange(first, stop - length + 1, stride), gaps(self.times)
        starts = starts[np.searchsorted(after, starts) == np.searchsorted(after, starts + length - 1)]
        if not len(starts):
            raise DataError(
                f"there is no window of {length:,} consecutive times among {stop - first:,} times, with {len(after):,} gaps "
                "in all. Give more files, or use shorter windows."
            )
        found: list[int] = starts.tolist()
        return found

    def _steps(self, name: str, start: int, stop: int) -> list[tuple[int, int]]:
        """Divide times into those to read at once: whole chunks of each file (see `Stored.step_bytes`)."""
        time_bytes = 4 * math.prod(self.cube.variables[name].shape[1:])
        edges, begin = [start], 0
        for stored in self.cube.files(name):
            end, step = begin + stored.shape[0], stored.whole(stored.step_bytes // time_bytes)
            edges += [edge for edge in range(begin, end, step) if edges[-1] < edge < stop]
            begin = end
        return list(zip(edges, [*edges[1:], stop], strict=True))


def gaps(times: NDArray[np.float64]) -> list[int]:
    """Return the indices of times after which some are missing: the next is further than 1.5 usual steps."""
    steps = np.diff(times)
    return np.flatnonzero(steps > 1.5 * np.median(steps)).tolist() if len(steps) > 1 else []
