"""Tell which physical quantity a channel holds, and how its units convert to SI."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hasten.core.errors import DataError
from hasten.data.cube.channels import Channel
from hasten.data.cube.regrid import Grid

Floats = npt.NDArray[np.float64]

HUMIDITY_BOUNDS = {"specific_humidity": (0.0, 0.05), "relative_humidity": (0.0, 1.2)}
"""Lowest and highest values accepted, in kg/kg and as a fraction of saturation (ice clouds are supersaturated)."""

_SPELLED = {  # CF standard names, then the usual short names of variables
    "temperature": "air_temperature t ta tas t2m 2t temp temperature",
    "pressure": "air_pressure surface_air_pressure air_pressure_at_mean_sea_level p sp ps msl psl pressure",
    "specific_humidity": "specific_humidity q hus huss shum humidity",
    "relative_humidity": "relative_humidity r rh hur hurs",
    "eastward_wind": "eastward_wind u ua uas u10 10u",
    "northward_wind": "northward_wind v va vas v10 10v",
    "geopotential": "geopotential geopotential_height z zg phi gh",
}
_NAMES = {name: quantity for quantity, names in _SPELLED.items() for name in names.split()}
_UNITS = {  # quantity: {units: (factor, offset)}, SI = factor * value + offset
    "temperature": {"k": (1.0, 0.0), "degc": (1.0, 273.15)},
    "pressure": {"pa": (1.0, 0.0), "hpa": (100.0, 0.0)},
    "specific_humidity": {"kgkg-1": (1.0, 0.0), "1": (1.0, 0.0), "gkg-1": (1e-3, 0.0)},
    "relative_humidity": {"1": (1.0, 0.0), "%": (1e-2, 0.0)},
    "eastward_wind": {"ms-1": (1.0, 0.0)},
    "geopotential": {"m2s-2": (1.0, 0.0), "m": (9.80665, 0.0)},
    "height": {"m": (1.0, 0.0), "km": (1e3, 0.0)},
}
_UNITS["northward_wind"] = _UNITS["eastward_wind"]
_OTHER_SPELLINGS = {
    "kelvin": "k", "c": "degc", "°c": "degc", "celsius": "degc", "degreesc": "degc", "degreescelsius": "degc", "mb": "hpa",
    "mbar": "hpa", "millibar": "hpa", "millibars": "hpa", "percent": "%", "jkg-1": "m2s-2", "gpm": "m", "meters": "m",
}  # fmt: skip
_MIRRORED = ("northward", "vorticity", "vertical_component_of_curl")
"""Parts of CF standard names whose values change sign when the globe is mirrored at the equator."""


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """What a channel holds.

    Attributes:
        name: `temperature`, `pressure`, `specific_humidity`, `relative_humidity`, `eastward_wind`, `northward_wind`,
            `geopotential`, or empty for anything else.
        factor: The SI value is `factor * value + offset`.
        offset: See `factor`.
        is_mirrored: Whether the value changes sign when the globe is mirrored at the equator.
    """

    name: str
    factor: float = 1.0
    offset: float = 0.0
    is_mirrored: bool = False


def quantity_of(channel: Channel) -> Quantity:
    """Return what a channel holds, by its CF standard name or, without one, by the usual short names.

    Raises:
        DataError: Its units are missing, or are not units of that quantity.
    """
    name = _NAMES.get(channel.standard_name or channel.variable.lower(), "")
    is_mirrored = name == "northward_wind" or any(part in channel.standard_name for part in _MIRRORED)
    if not name:
        return Quantity(name="", is_mirrored=is_mirrored)
    factor, offset = _si(name, channel.units, channel.variable)
    return Quantity(name=name, factor=factor, offset=offset, is_mirrored=is_mirrored)


def level_of(channel: Channel) -> tuple[str, float] | None:
    """Return `("pressure", Pa)` or `("height", m)`. None if there is no level, or its units say neither."""
    if channel.level is None:
        return None
    for kind in ("pressure", "height"):
        if _plain(channel.level_units) in _UNITS[kind]:
            return kind, _UNITS[kind][_plain(channel.level_units)][0] * channel.level
    return None


def standard_pressure(channel: Channel) -> float:
    """Return the pressure of a channel's level in Pa, of a height in the standard atmosphere (ICAO 1993). 0 if unknown."""
    kind, value = level_of(channel) or ("pressure", 0.0)
    if kind == "pressure":
        return value
    below = 101_325.0 * (1 - 6.5e-3 * min(value, 11_000.0) / 288.15) ** 5.25588
    return float(below * np.exp(-max(value - 11_000.0, 0.0) / 6341.6))


def _si(name: str, units: str, variable: str) -> tuple[float, float]:
    known = _UNITS[name]
    if _plain(units) not in known:
        said = f"has the units {units!r}" if units else "has no units"
        raise DataError(
            f"the variable {variable!r} ({name.replace('_', ' ')}) {said}, which cannot be converted. "
            f"Known: {', '.join(known)}. Correct its attribute `units`, or `standard_name` if it is another quantity."
        )
    return known[_plain(units)]


def _plain(units: str) -> str:
    """Return units in one spelling: `kg/kg`, `kg kg**-1` and `kg.kg-1` are `kgkg-1`."""
    text = re.sub(r"\s*/\s*([a-z]+)(\d*)", lambda found: f" {found[1]}-{found[2] or 1}", units.strip().lower())
    text = re.sub(r"[\s_.*^·]", "", text)
    return _OTHER_SPELLINGS.get(text, text)


def cell_areas(grid: Grid) -> Floats:
    """Return the fraction of the grid's area that each latitude covers `[latitude]`; cells meet halfway between points."""
    latitude = np.asarray(grid.latitude)
    if len(latitude) == 1:
        return np.ones(1)
    middle = (latitude[1:] + latitude[:-1]) / 2
    edges = np.concatenate([2 * latitude[:1] - middle[:1], middle, 2 * latitude[-1:] - middle[-1:]])
    areas = np.abs(np.diff(np.sin(np.deg2rad(edges.clip(-90, 90)))))
    return np.asarray(areas / areas.sum())


def is_periodic(grid: Grid) -> bool:
    """Return whether the longitudes are equally spaced around the whole globe."""
    steps = np.abs(np.diff(grid.longitude))
    return bool(len(steps) and np.allclose(steps, 360 / len(grid.longitude), rtol=1e-3))


def is_symmetric(grid: Grid) -> bool:
    """Return whether each latitude has its mirror image at the equator."""
    return bool(np.allclose(grid.latitude, -np.asarray(grid.latitude)[::-1], atol=1e-3))


def is_global(grid: Grid) -> bool:
    """Return whether the grid covers the globe."""
    step = np.abs(np.diff(grid.latitude)).max(initial=0.0)
    return is_periodic(grid) and np.ptp(grid.latitude) + step >= 180 - 1e-3 * step
