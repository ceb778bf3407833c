"""Open files with gridded data as one cube: find the variables, choose how to read each, and join files along time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from hasten.core.errors import CorruptError, DataError
from hasten.data.cube.axes import Axis, Role, difference, in_units, read_axis, role_of
from hasten.data.cube.cf import Packing
from hasten.data.cube.classic import read_classic
from hasten.data.cube.cube import Cube, Part, Variable, missing
from hasten.data.cube.hdf5 import read_hdf5
from hasten.data.cube.stored import Stored
from hasten.data.cube.with_xarray import read_with_xarray

_ORDER: tuple[Role, ...] = ("time", "level", "latitude", "longitude")
ZARR = ("zarr.json", ".zgroup", ".zmetadata")
"""Files of which a Zarr store has one."""
_One = tuple[Variable, Part]


def open_cube(paths: Sequence[Path], *, variables: Sequence[str] | None = None) -> Cube:
    """Open files as one cube. Several files are joined along time, in the order of their times.

    Args:
        paths: NetCDF or GRIB files, or Zarr stores, with the same grid and the same variables.
        variables: Names of the variables, in the order wanted. None for all that have a time, a latitude and a longitude.

    Raises:
        DataError: A file is missing or cannot be used, or the files do not fit together.
        CorruptError: A file is truncated or corrupt.
        MachineError: A package is not installed.
    """
    if not paths:
        raise DataError("There are no files to open. Give one or more NetCDF, Zarr or GRIB files.")
    files = [_open_one(Path(path), variables) for path in paths]
    first, left_out = files[0]
    for path, (others, _) in zip(paths, files, strict=True):
        if absent := [name for name in first if name not in others]:
            raise DataError(f"{path}: {missing(absent[0], others, {})} {paths[0]} has it.")
    joined = {name: _join([found[name] for found, _ in files]) for name in first}
    return Cube(
        {name: variable for name, (variable, _) in joined.items()},
        {name: parts for name, (_, parts) in joined.items()},
        left_out,
    )


def _open_one(path: Path, variables: Sequence[str] | None) -> tuple[dict[str, _One], dict[str, str]]:
    """Return the variables of one file, and why others are left out."""
    arrays = _arrays(path)
    coordinates = {dim for array in arrays.values() for dim in array.dims}
    found: dict[str, _One] = {}
    left_out: dict[str, str] = {}
    axes: dict[str, Axis] = {}
    for name in variables if variables is not None else arrays:
        if name not in arrays:
            candidates = {name: array for name, array in arrays.items() if len(array.dims) >= 3}
            raise DataError(f"{path}: {missing(name, candidates, {})}")
        array = arrays[name]
        if variables is None and (name in coordinates or len(array.dims) < 2):
            continue
        try:
            found[name] = _variable(array, arrays, axes)
        except CorruptError:
            raise
        except DataError as error:
            if variables is not None:
                raise
            left_out[name] = str(error)
    if not found:
        reasons = "".join(f"\n  {reason}" for reason in left_out.values())
        raise DataError(f"{path} has no variable with a time, a latitude and a longitude.{reasons}")
    return found, left_out


def _arrays(path: Path) -> dict[str, Stored]:
    """Return the arrays of a file, read by the way that its first bytes call for."""
    if not path.exists():
        raise DataError(f"{path} does not exist.")
    if path.is_dir():
        if any((path / name).exists() for name in ZARR):
            return read_with_xarray(path, "zarr")
        raise DataError(f"{path} is a folder, and not a Zarr store. Give the files in it: {path}/*.nc")
    with path.open("rb") as file:
        magic = file.read(8)
    if magic[:4] in {b"CDF\1", b"CDF\2"}:
        return read_classic(path)
    if magic[:4] == b"CDF\5":  # NetCDF-3 with 64-bit sizes
        return read_with_xarray(path, "netcdf4")
    if magic[:4] == b"GRIB":
        return read_with_xarray(path, "cfgrib")
    return read_hdf5(path)


def _variable(array: Stored, arrays: Mapping[str, Stored], axes: dict[str, Axis]) -> _One:
    """Describe a variable. `axes` holds the axes read so far, by dimension.

    Raises:
        DataError: Its dimensions are not time, level (or none), latitude and longitude.
    """
    packing = Packing.read(array.dtype, array.attrs, array.where)
    roles: list[Role] = []
    for dim in array.dims:
        coordinate = _coordinate(dim, array, arrays)
        role = role_of(coordinate)
        if role is None:
            raise DataError(f"{array.where}: the dimension {dim} is not a time, level, latitude or longitude.")
        roles.append(role)
        if dim not in axes:
            axes[dim] = read_axis(coordinate, role)
    wanted = [role for role in _ORDER if role != "level" or "level" in roles]
    if roles != wanted:
        raise DataError(
            f"{array.where} has the dimensions {', '.join(array.dims)}, which measure {', '.join(roles)}. "
            f"Needed are time, level (or none), latitude, longitude, in this order."
        )
    variable = Variable(
        name=array.name,
        standard_name=str(array.attrs.get("standard_name", "")),
        units=str(array.attrs.get("units", "")),
        axes=tuple(axes[dim] for dim in array.dims),
        shape=array.shape,
        way=array.way,
    )
    return variable, Part(array, packing)


def _coordinate(dim: str, array: Stored, arrays: Mapping[str, Stored]) -> Stored:
    """Return the coordinate of a dimension: the array of its name, or another one along it that says what it measures."""
    along = [other for other in arrays.values() if other.dims == (dim,)]
    named = [other for other in along if other.name == dim]
    telling = [other for other in along if role_of(other)]
    for coordinate in (*named, *telling):
        return coordinate
    curved = [other.name for other in arrays.values() if len(other.dims) == 2 and dim in other.dims and role_of(other)]
    if curved:
        raise DataError(
            f"{array.where} is on a curvilinear grid: {' and '.join(curved)} have two dimensions. "
            "Interpolate it to a regular grid first, for example with: cdo remapbil,r360x180"
        )
    raise DataError(f"{array.where}: the dimension {dim} has no coordinate. Add one, with units.")


def _join(files: Sequence[_One]) -> tuple[Variable, list[Part]]:
    """Join a variable along time.

    Raises:
        DataError: The files do not fit together.
    """
    first, part = files[0]
    time = first.axes[0]
    times = []
    for variable, other in files:
        if variable.units != first.units:
            raise DataError(
                f"{part.stored.where} has the units {first.units!r}, and {other.stored.path} has {variable.units!r}."
            )
        if [axis.role for axis in variable.axes] != [axis.role for axis in first.axes]:
            raise DataError(f"{first.name} has a level in only one of {part.stored.path} and {other.stored.path}.")
        for axis, same in zip(first.axes[1:], variable.axes[1:], strict=True):
            if differs := difference(axis, same):
                raise DataError(
                    f"{first.name}: the {axis.role} of {part.stored.path} and {other.stored.path} differs: {differs}. "
                    "Regrid the files to one grid first."
                )
        if variable.axes[0].calendar != time.calendar:
            raise DataError(
                f"{first.name}: {part.stored.path} has the calendar {time.calendar}, and {other.stored.path} has "
                f"{variable.axes[0].calendar}. They cannot be joined."
            )
        times.append(in_units(variable.axes[0], time.units))
    order = sorted(range(len(files)), key=lambda index: times[index][0])
    for before, after in pairwise(order):
        if times[before][-1] >= times[after][0]:
            raise DataError(
                f"{first.name}: the times of {files[before][1].stored.path} and {files[after][1].stored.path} overlap. "
                "Open files that follow each other."
            )
    values = np.concatenate([times[index] for index in order])
    ways = dict.fromkeys(files[index][0].way for index in order)
    joined = Variable(
        name=first.name,
        standard_name=first.standard_name,
        units=first.units,
        axes=(Axis(role="time", name=time.name, values=values, units=time.units, calendar=time.calendar), *first.axes[1:]),
        shape=(len(values), *first.shape[1:]),
        way="; ".join(ways),
    )
    return joined, [files[index][1] for index in order]
