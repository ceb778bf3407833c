"""Generate a physically plausible atmosphere as a NetCDF-4 file, for users without their own data.

Temperature falls with latitude, season and height, down to a tropopause. Pressure is its hydrostatic integral. Winds
are geostrophic, with a regularised Coriolis parameter near the equator. Specific humidity is a fraction of saturation.
Waves travel along the parallels, each at its own speed, so the next hours can be learned from the last ones. Left out:
topography, clouds, radiation, and any interaction of the waves.

Source: Holton and Hakim, "An Introduction to Dynamic Meteorology", chapters 1 and 3; saturation from Bolton 1980.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from hasten.recipes.drawn import drawn_once
from hasten.recipes.needed import needed

Fields: TypeAlias = Mapping[str, npt.NDArray[np.float32]]

GRAVITY = 9.80665
"""m/s2."""
GAS_CONSTANT = 287.05
"""Of dry air, in J/(kg K)."""
EARTH_RADIUS = 6.371e6
"""m."""
EARTH_ROTATION = 7.2921e-5
"""rad/s."""
LAPSE = 6.5e-3
"""Fall of temperature with height, in K/m."""
TROPOPAUSE = 205.0
"""Lowest temperature, in K."""
NUM_WAVES = 6
_DRAWING = 1
"""Increased when the fields of a seed change."""

UNITS = {"temperature": "K", "pressure": "Pa", "humidity": "kg kg-1", "u": "m s-1", "v": "m s-1"}
STANDARD_NAMES = {
    "temperature": "air_temperature",
    "pressure": "air_pressure",
    "humidity": "specific_humidity",
    "u": "eastward_wind",
    "v": "northward_wind",
}
_PACKED_RANGE = {
    "temperature": (150, 350),
    "pressure": (0, 112_000),
    "humidity": (0, 0.05),
    "u": (-150, 150),
    "v": (-150, 150),
}


@dataclass(frozen=True, kw_only=True)
class DrawnCube:
    """A cube to generate.

    Attributes:
        num_times: Number of time steps.
        num_levels: Number of heights, from the ground to `top_m`.
        num_latitudes: Number of latitudes, from north to south, poles included.
        num_longitudes: Number of longitudes, from 0 degrees to the east.
        top_m: Highest level in metres.
        step_hours: Hours between two time steps.
        seed: Seed of the waves.
    """

    num_times: int = 240
    num_levels: int = 3
    num_latitudes: int = 37
    num_longitudes: int = 72
    top_m: float = 10_000.0
    step_hours: float = 6.0
    seed: int = 0

    @property
    def axes(self) -> dict[str, npt.NDArray[np.float64]]:
        """The coordinates: hours, metres, degrees north and degrees east."""
        return {
            "time": np.arange(self.num_times, dtype=np.float64) * self.step_hours,
            "height": np.linspace(0.0, self.top_m, self.num_levels),
            "latitude": np.linspace(90.0, -90.0, self.num_latitudes),
            "longitude": np.arange(self.num_longitudes, dtype=np.float64) * (360.0 / self.num_longitudes),
        }

    def at(self, time: int) -> Fields:
        """Return all variables of one time step, float32 `[height, latitude, longitude]`."""
        hours = time * self.step_hours
        axes = self.axes
        height = axes["height"][:, None, None]
        latitude, longitude = np.deg2rad(axes["latitude"])[:, None], np.deg2rad(axes["longitude"])[None, :]
        warm, heavy, wet = self._waves(hours, latitude, longitude)
        season = np.cos(2 * np.pi * (hours / 24 - 200) / 365.25)
        ground = 301.0 - 45.0 * np.sin(latitude) ** 2 + 12.0 * season * np.sin(latitude) + 5.0 * warm
        temperature = np.maximum(ground - LAPSE * height, TROPOPAUSE)
        ground_pressure = 101_325.0 + 900.0 * heavy
        relative = np.clip(0.6 + 0.2 * wet, 0.05, 0.9) * np.exp(-height / 9000.0)
        humidity = relative * saturation(temperature, hydrostatic(temperature, ground_pressure, axes["height"]))
        virtual = temperature * (1 + 0.608 * humidity)
        pressure = hydrostatic(virtual, ground_pressure, axes["height"])
        u, v = geostrophic(virtual, pressure, axes["latitude"], self.num_longitudes)
        values = {"temperature": temperature, "pressure": pressure, "humidity": humidity, "u": u, "v": v}
        return {name: value.astype(np.float32) for name, value in values.items()}

    def _waves(self, hours: float, latitude: Any, longitude: Any) -> list[Any]:
        """Return three sums of travelling waves `[latitude, longitude]`, of variance near 1, zero at the poles."""
        random = np.random.default_rng(self.seed)
        number = np.arange(1, NUM_WAVES + 1)
        degrees_per_day = random.uniform(6.0, 14.0, NUM_WAVES)
        phases, tilts = random.uniform(0, 2 * np.pi, NUM_WAVES), random.uniform(-2.0, 2.0, NUM_WAVES)
        sums = []
        for lag in (0.0, np.pi / 2, np.pi):  # pressure follows temperature by a quarter of a wave
            total = 0.0
            for k, speed, phase, tilt in zip(number, degrees_per_day, phases, tilts, strict=True):
                moved = longitude - np.deg2rad(speed * hours / 24)
                total = total + np.sin(k * moved + phase + lag + tilt * latitude) / np.sqrt(k)
            sums.append(np.cos(latitude) ** 2 * total)
        return sums


def hydrostatic(temperature: Any, ground: Any, height: Any) -> Any:
    """Return the pressure of a column, in Pa, from the virtual temperature `[height, ...]` and the pressure at the ground.

    Each layer has the mean temperature of its two levels: `p[k+1] = p[k] * exp(-g dz / (R T))`.
    """
    layers = GRAVITY / GAS_CONSTANT * np.diff(height)[:, None, None] / (0.5 * (temperature[1:] + temperature[:-1]))
    depth = np.concatenate([np.zeros_like(temperature[:1]), np.cumsum(layers, axis=0)])
    return ground * np.exp(-depth)


def saturation(temperature: Any, pressure: Any) -> Any:
    """Return the specific humidity of saturated air over water, in kg/kg, by the formula of Bolton 1980."""
    vapour = 611.2 * np.exp(17.67 * (temperature - 273.15) / (temperature - 29.65))
    return 0.622 * vapour / (pressure - 0.378 * vapour)


def geostrophic(temperature: Any, pressure: Any, latitude: Any, num_longitudes: int) -> tuple[Any, Any]:
    """Return the wind that balances the pressure gradient, in m/s: `u` to the east, `v` to the north.

    Args:
        temperature: Virtual temperature in K, `[height, latitude, longitude]`.
        pressure: In Pa.
        latitude: In degrees.
        num_longitudes: Longitudes around the globe.
    """
    radians = np.deg2rad(latitude)
    coriolis, least = 2 * EARTH_ROTATION * np.sin(radians), 2 * EARTH_ROTATION * np.sin(np.deg2rad(15.0))
    inverse = (coriolis / (coriolis**2 + least**2))[None, :, None]  # 1/f, but 0 instead of infinite at the equator
    density = pressure / (GAS_CONSTANT * temperature)
    to_north = np.gradient(pressure, radians, axis=1) / EARTH_RADIUS
    step = 2 * np.pi / num_longitudes
    parallel = np.maximum(np.cos(radians), 1e-2)[None, :, None]
    to_east = (np.roll(pressure, -1, axis=2) - np.roll(pressure, 1, axis=2)) / (2 * step * EARTH_RADIUS * parallel)
    return -inverse / density * to_north, inverse / density * to_east


def write_cube(
    path: Path,
    cube: DrawnCube,
    *,
    stored: Literal["float32", "int16"] = "float32",
    chunks: tuple[int, int, int, int] | None = None,
    zlib: int = 0,
    told: Callable[[], None] = lambda: None,
) -> None:
    """Write a cube as NetCDF-4 with CF attributes, one time step at a time.

    Args:
        path: The new file.
        cube: What to generate.
        stored: `int16` packs with `scale_factor` and `add_offset`.
        chunks: Chunk shape; None stores contiguous variables.
        zlib: Compression level, with shuffle; 0 is off. Needs `chunks`.
        told: Called after each time step.

    Raises:
        MachineError: h5py is not installed.
    """
    h5py = needed("h5py", extra="datacube")
    attributes = {
        "time": {"units": "hours since 2001-01-01 00:00:00", "calendar": "standard", "standard_name": "time", "axis": "T"},
        "height": {"units": "m", "positive": "up", "standard_name": "height", "axis": "Z"},
        "latitude": {"units": "degrees_north", "standard_name": "latitude", "axis": "Y"},
        "longitude": {"units": "degrees_east", "standard_name": "longitude", "axis": "X"},
    }
    packing = {"compression": "gzip", "compression_opts": zlib, "shuffle": True} if zlib else {}
    with h5py.File(path, "w", libver=("earliest", "v110"), track_order=True) as file:
        file.attrs["Conventions"] = "CF-1.8"
        shape = tuple(len(values) for values in cube.axes.values())
        for name, values in cube.axes.items():
            file.create_dataset(name, data=values)
            file[name].make_scale(name)
            file[name].attrs.update(attributes[name])
        for name, units in UNITS.items():
            variable = file.create_dataset(name, shape, dtype=stored, chunks=chunks, **packing)
            variable.attrs.update({"units": units, "standard_name": STANDARD_NAMES[name]})
            if stored == "int16":
                low, high = _PACKED_RANGE[name]
                scale, offset = (high - low) / 65_000, (high + low) / 2
                variable.attrs.update({"scale_factor": scale, "add_offset": offset, "_FillValue": np.int16(-32768)})
            for at, axis in enumerate(cube.axes):
                variable.dims[at].attach_scale(file[axis])
        step = chunks[0] if chunks else 1
        for start in range(0, cube.num_times, step):
            drawn = [cube.at(time) for time in range(start, min(start + step, cube.num_times))]
            for name in UNITS:
                variable, values = file[name], np.stack([fields[name] for fields in drawn])
                if stored == "int16":
                    scale, offset = variable.attrs["scale_factor"], variable.attrs["add_offset"]
                    values = np.rint((values - offset) / scale).astype(np.int16)
                variable[start : start + len(drawn)] = values
            for _ in drawn:
                told()


def write(folder: Path, count: int, seed: int, *, told: Callable[[], None] = lambda: None) -> None:
    """Write FOLDER/cube.nc with `count` time steps of a global grid of five degrees."""
    folder.mkdir(parents=True, exist_ok=True)
    write_cube(folder / "cube.nc", DrawnCube(num_times=count, seed=seed), told=told)


def drawn_file(cube: DrawnCube) -> Path:
    """Return a file with the cube, generated once on this machine."""
    shape = f"{cube.num_times}x{cube.num_levels}x{cube.num_latitudes}x{cube.num_longitudes}"
    name = f"cube-{_DRAWING}-{shape}-{cube.top_m:g}m-{cube.step_hours:g}h-{cube.seed}"
    return drawn_once(name, lambda folder: _written(folder, cube)) / "cube.nc"


def _written(folder: Path, cube: DrawnCube) -> None:
    folder.mkdir()
    write_cube(folder / "cube.nc", cube)
