"""Coordinates by the CF conventions (chapter 4): what an axis measures, and whether it can be right."""

from __future__ import annotations

import math
import re
import warnings
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hasten.core.errors import DataError, MachineError
from hasten.data.cube.cf import Packing
from hasten.data.cube.stored import Stored

Role = Literal["time", "level", "latitude", "longitude"]
_NORTH = {"degrees_north", "degree_north", "degrees_n", "degree_n", "degreesn", "degreen"}
_EAST = {"degrees_east", "degree_east", "degrees_e", "degree_e", "degreese", "degreee"}
_DEGREES = {"degrees", "degree"}
"""Without a direction: enough if the name or the standard name says which it is."""
_NAMES: dict[Role, str] = {
    "latitude": r"lat|latitude|nav_lat|y",
    "longitude": r"lon|long|longitude|nav_lon|x",
    "time": r"time|t|valid_time|date|year|month|week|day|dayofyear|hour|season",
    "level": r"level|p?lev|pressure|(pressure|model)_level|isobaricinhpa|hybrid|height|alt|altitude|depth|z|lv_\w+",
}
_PRESSURES = {"hpa", "pa", "mbar", "mb", "millibar", "millibars", "bar", "kpa", "dbar"}
_COUNTED = re.compile(r"year|month|week|day|dayofyear|hour|season", re.IGNORECASE)
"""Names of times that are plain numbers, such as the months of a climatology."""
_CALENDARS = {"gregorian": "standard", "365_day": "noleap", "366_day": "all_leap"}
"""Other names of calendars, and what CF calls them now."""
_MOST = 2**26
"""Values of the longest axis that is read: times a second apart for two years."""
_CLOSE = 1e-6
"""How far coordinates of two files may differ and be the same, relative to their values: they may be float32 in one."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One coordinate of a variable.

    Attributes:
        role: What the coordinate measures.
        name: Its name in the files.
        values: As stored: latitudes may descend, and longitudes start at -180 or at 0. Strictly monotonic.
        units: As stored, such as `degrees_north` or `hours since 1900-01-01`.
        calendar: Calendar of a time in the words of CF, such as `standard` or `360_day`. None for other axes, and for times
            that are plain numbers, such as the months of a climatology.
    """

    role: Role
    name: str
    values: NDArray[np.float64]
    units: str
    calendar: str | None


def role_of(coordinate: Stored) -> Role | None:
    """Tell what a coordinate measures from its standard name, units, axis and name. None if they do not say."""
    standard = str(coordinate.attrs.get("standard_name", "")).lower()
    units = _units(coordinate).lower()
    if standard in {"latitude", "longitude", "time"}:
        return standard  # type: ignore[return-value]
    if standard.startswith(("grid_", "projection_")):
        return None
    if units in _NORTH or units in _EAST:
        return "latitude" if units in _NORTH else "longitude"
    if " since " in units:
        return "time"
    if units in _PRESSURES or "positive" in coordinate.attrs:
        return "level"
    named = next((role for role, names in _NAMES.items() if re.fullmatch(names, coordinate.name, re.IGNORECASE)), None)
    marked: dict[str, Role] = {"T": "time", "Z": "level", "Y": "latitude", "X": "longitude"}
    return marked.get(str(coordinate.attrs.get("axis", "")).upper(), named)


def read_axis(coordinate: Stored, role: Role) -> Axis:
    """Read a coordinate and check that its units and values can be right.

    Raises:
        DataError: They cannot.
        CorruptError: The bytes are truncated or modified.
        MachineError: The package cftime is not installed.
    """
    packing = Packing.read(coordinate.dtype, coordinate.attrs, coordinate.where)
    if not 0 < math.prod(coordinate.shape) <= _MOST:
        raise DataError(f"{coordinate.where} claims {math.prod(coordinate.shape):,} values: not from 1 to {_MOST:,}.")
    raw = coordinate.all()
    values = np.empty(raw.shape, np.float64)
    packing.decode(raw, values)
    units, calendar = _units(coordinate), None
    if not np.isfinite(values).all():
        at = int(np.flatnonzero(~np.isfinite(values))[0])
        raise DataError(f"{coordinate.where} has no value at index {at}. A coordinate must be complete.")
    steps = np.diff(values)
    if not ((steps > 0).all() or ((steps < 0).all() and role != "time")):
        at = int(np.flatnonzero(np.sign(steps) != np.sign(steps[0]) if steps[0] and role != "time" else steps <= 0)[0])
        ascend = "ascend" if role == "time" else "ascend or descend throughout"
        hint = " Sort the file by longitude." if role == "longitude" else " Sort the file, and remove repeated values."
        raise DataError(
            f"{coordinate.where} must {ascend}, but {values[at]:g} is followed by {values[at + 1]:g} (index {at + 1}).{hint}"
        )
    if role == "time":
        units, calendar = _check_time(coordinate, units, values)
    elif role in {"latitude", "longitude"}:
        _check_degrees(coordinate, role, units, values)
    return Axis(role=role, name=coordinate.name, values=values, units=units, calendar=calendar)


def _units(coordinate: Stored) -> str:
    return str(coordinate.attrs.get("units", "")).strip()


def _check_degrees(coordinate: Stored, role: Role, units: str, values: NDArray[np.float64]) -> None:
    right, limit = (_NORTH, 90) if role == "latitude" else (_EAST, 360)
    if units.lower() not in right | _DEGREES:
        wanted = "degrees_north" if role == "latitude" else "degrees_east"
        found = f"has the units {units!r}" if units else "has no units"
        raise DataError(
            f"{coordinate.where} {found}, and {role} needs {wanted}. If its values are in degrees, correct the file: "
            f"ncatted -a units,{coordinate.name},o,c,{wanted} {coordinate.path.name}"
        )
    if np.abs(values).max() > limit + 1e-3 or np.ptp(values) > 360 + 1e-3:
        raise DataError(f"{coordinate.where} has values from {values.min():g} to {values.max():g}: not a {role} in degrees.")


def _check_time(coordinate: Stored, units: str, values: NDArray[np.float64]) -> tuple[str, str | None]:
    """Return the units and the calendar of a time."""
    if " since " not in units.lower():
        if not units and _COUNTED.fullmatch(coordinate.name):
            return "", None
        found = f"has the units {units!r}" if units else "has no units"
        raise DataError(f"{coordinate.where} {found}, and a time needs such as 'hours since 1900-01-01'. Correct the file.")
    named = str(coordinate.attrs.get("calendar", "standard")).lower()
    calendar = _CALENDARS.get(named, named)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # of dates before the first year of a calendar
            _cftime().num2date(values[[0, -1]], units, calendar)
    except (ValueError, OverflowError, TypeError, Warning) as error:
        raise DataError(
            f"{coordinate.where} has the values {values[0]:g} to {values[-1]:g}, the units {units!r} and the calendar "
            f"{named!r}, which are not dates: {error}."
        ) from error
    return units, calendar


def in_units(axis: Axis, units: str) -> NDArray[np.float64]:
    """Return the values of a time in other units of the same calendar, such as hours since another date.

    Raises:
        MachineError: The package cftime is not installed.
    """
    if axis.units == units:
        return axis.values
    cftime: Any = _cftime()
    dates = cftime.num2date(axis.values, axis.units, axis.calendar)
    return np.asarray(cftime.date2num(dates, units, axis.calendar), np.float64)


def date_of(value: float, units: str, calendar: str | None) -> str:
    """Return a time for people: its date, or the number if it is a plain one."""
    return f"{value:g} {units}".strip() if calendar is None else str(_cftime().num2date(value, units, calendar))


def difference(axis: Axis, other: Axis) -> str | None:
    """Say how two axes of a grid differ. None if they are the same."""
    if axis.role == "level" and axis.units != other.units:
        return f"units {axis.units!r} and {other.units!r}"
    if len(axis.values) != len(other.values):
        return f"{len(axis.values):,} and {len(other.values):,} values"
    far = ~np.isclose(axis.values, other.values, rtol=_CLOSE, atol=_CLOSE)
    if far.any():
        at = int(np.flatnonzero(far)[0])
        return f"{axis.values[at]:g} and {other.values[at]:g} at index {at}"
    return None


def _cftime() -> Any:
    try:
        import cftime  # noqa: PLC0415  of the extra `datacube`
    except ImportError as error:
        raise MachineError("times need cftime: pip install 'hasten[datacube]'.") from error
    return cftime
