"""Read fields on a grid: one row per time, with all variables and levels on the grid wanted."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

from hasten.core.errors import DataError
from hasten.data.convert.contract import Choices, Note, Reader, ReadPart, Unit, noted
from hasten.data.convert.listing import Listing, has_files, listed
from hasten.data.cube.axes import date_of
from hasten.data.cube.fields import Fields, gaps
from hasten.data.cube.open import ZARR, open_cube

ENDINGS = (".nc", ".nc4", ".cdf", ".netcdf", ".grib", ".grib2", ".grb", ".grb2")
_UNIT_BYTES = 2**28
"""Decoded values of a unit."""
_PART_BYTES = 2**26
"""Regridded values that are written at once."""


class Gridded(Reader):
    """Read the columns `fields`, float32 [channel, latitude, longitude], and `time`, in seconds since 1970."""

    name: ClassVar[str] = "grid"
    words: ClassVar[str] = "fields on a grid with a time (NetCDF, GRIB)"
    needs: ClassVar[str] = "datacube"

    @classmethod
    def claims(cls, path: Path) -> bool:
        """Check the suffixes."""
        return has_files(path, ENDINGS)

    @classmethod
    def units(cls, path: Path, choices: Choices) -> list[Unit]:
        """Return ranges of the times of each file, in the order of their times.

        Raises:
            DataError: A file cannot be used, or files do not fit together. A lost file would leave a gap in the times.
        """
        listing = Listing(files=[path]) if _is_zarr(path) else listed(path, ENDINGS)
        for file, problem in listing.problems:
            raise DataError(f"{file}: {problem}.")
        fields = _fields(listing.files, choices)
        name = fields.channels[0].variable
        units = []
        for stored in fields.cube.files(name):
            time_bytes = 4 * sum(math.prod(variable.shape[1:]) for variable in fields.variables)
            step, times = stored.whole(_UNIT_BYTES // time_bytes), stored.shape[0]
            for start in range(0, times, step):
                end = min(start + step, times)
                units.append(Unit(path=str(stored.path), start=start, end=end, num_bytes=time_bytes * (end - start)))
        return noted(units, listing)

    @classmethod
    def remarks(cls, units: Sequence[Unit], choices: Choices) -> list[str]:
        """Say how each variable is read, and where times are missing."""
        fields = _fields(list(dict.fromkeys(Path(unit.path) for unit in units)), choices)
        said = [f"{variable.name}: read by {variable.way}" for variable in fields.variables]
        said += [f"{name} is left out: {reason}" for name, reason in fields.cube.left_out.items() if not choices.columns]
        if missing := gaps(fields.times):
            last = date_of(fields.times[missing[0]], fields.time_units, fields.calendar)
            where = f"in {len(missing):,} places, first after {last}"
            said.append(f"times are missing {where}: windows of the store span them")
        return said

    @classmethod
    def facts(cls, units: Sequence[Unit], choices: Choices) -> dict[str, Any]:
        """Return the channels, the grid and the units of the time, as JSON."""
        fields = _fields([Path(units[0].path)], choices)
        grid = {"latitude": fields.grid.latitude, "longitude": fields.grid.longitude}
        channels = [asdict(channel) for channel in fields.channels]
        time = {"units": fields.time_units, "calendar": fields.calendar}
        return {"grid": json.dumps(grid), "channels": json.dumps(channels), "time": json.dumps(time)}

    @classmethod
    def read(cls, unit: Unit, choices: Choices) -> Iterator[ReadPart]:
        """Return the times of a unit."""
        fields = _fields([Path(unit.path)], choices)
        [stored] = fields.cube.files(fields.channels[0].variable)
        step = stored.whole(_PART_BYTES // (4 * math.prod(fields.shape)))  # each chunk is decoded once
        for start in range(unit.start, unit.end, step):
            stop = min(start + step, unit.end)
            values = fields.read(start, stop)
            missing = int(values.isnan().sum())
            if missing:
                yield Note("missing values of fields, stored as NaN", missing)
            yield {"fields": values.numpy(), "time": fields.times[start:stop]}


class Zarr(Gridded):
    """Read a Zarr store in the same way."""

    name: ClassVar[str] = "zarr"
    words: ClassVar[str] = "a Zarr store of such fields"

    @classmethod
    def claims(cls, path: Path) -> bool:
        """Look for the metadata of a Zarr store."""
        return _is_zarr(path)


def _is_zarr(path: Path) -> bool:
    return any((path / name).exists() for name in ZARR)


def _fields(files: Sequence[Path], choices: Choices) -> Fields:
    names = choices.columns or None
    return Fields(open_cube(files, variables=names), variables=names, grid=choices.grid)
