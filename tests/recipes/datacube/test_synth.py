"""The generated atmosphere: physically plausible, seeded, and readable by other libraries as NetCDF-4."""

from __future__ import annotations

from pathlib import Path

import netCDF4
import numpy as np
import pytest
import xarray

from hasten.recipes.datacube import synth
from hasten.recipes.datacube.synth import GAS_CONSTANT, GRAVITY, DrawnCube, saturation, write_cube

CUBE = DrawnCube(num_times=5, num_levels=6, num_latitudes=37, num_longitudes=72, seed=3)


def test_the_fields_are_those_of_an_atmosphere() -> None:
    fields = CUBE.at(2)
    temperature, pressure, humidity = (fields[name].astype(np.float64) for name in ("temperature", "pressure", "humidity"))
    axes = CUBE.axes
    ground = temperature[0].mean(axis=1)
    assert 285 < ground[18] < 315
    assert ground[0] < 270
    assert ground[-1] < 270
    assert (np.diff(temperature.mean((1, 2))) < 0).all()
    virtual = temperature * (1 + 0.608 * humidity)
    layer = 0.5 * (virtual[1:] + virtual[:-1])
    thickness = -GAS_CONSTANT / GRAVITY * layer * np.diff(np.log(pressure), axis=0)
    np.testing.assert_allclose(thickness, np.broadcast_to(np.diff(axes["height"])[:, None, None], layer.shape), rtol=1e-4)
    assert 95_000 < pressure[0].min() < pressure[0].max() < 108_000
    assert (humidity >= 0).all()
    assert (humidity < saturation(temperature, pressure)).all()
    assert np.abs(fields["u"]).max() < 120
    middle = (np.abs(axes["latitude"]) > 30) & (np.abs(axes["latitude"]) < 60)
    assert fields["u"][-1][middle].mean() > 5  # westerlies aloft, by the thermal wind
    assert np.abs(fields["v"].mean(axis=2)).max() < 1  # geostrophic: no flow across a whole parallel


def test_waves_move_and_a_seed_repeats_them() -> None:
    first, later = CUBE.at(0)["temperature"], CUBE.at(1)["temperature"]
    assert 0.1 < np.abs(later - first).mean() < 5
    assert np.array_equal(first, CUBE.at(0)["temperature"])
    assert not np.array_equal(first, DrawnCube(**{**vars(CUBE), "seed": 4}).at(0)["temperature"])


@pytest.mark.parametrize(
    ("stored", "chunks", "zlib"),
    [("float32", None, 0), ("int16", None, 0), ("float32", (2, 1, 37, 72), 4), ("int16", (1, 6, 20, 30), 1)],
)
def test_other_libraries_read_what_is_written(
    tmp_path: Path, stored: str, chunks: tuple[int, ...] | None, zlib: int
) -> None:
    path = tmp_path / "cube.nc"
    write_cube(path, CUBE, stored=stored, chunks=chunks, zlib=zlib)  # type: ignore[arg-type]
    with xarray.open_dataset(path) as dataset:
        assert dataset["temperature"].dims == ("time", "height", "latitude", "longitude")
        assert str(dataset["time"].values[1])[:13] == "2001-01-01T06"
        tolerance = {"temperature": 0.01, "pressure": 1.0, "humidity": 1e-6, "u": 0.01, "v": 0.01}
        for name, most in tolerance.items():
            close = 1e-6 if stored == "float32" else most
            for time in (0, 4):
                np.testing.assert_allclose(dataset[name][time], CUBE.at(time)[name], atol=close, rtol=1e-6)
    with netCDF4.Dataset(path) as file:
        assert file["temperature"].standard_name == "air_temperature"
        assert file["temperature"].chunking() == ("contiguous" if chunks is None else list(chunks))
        assert file["temperature"].dimensions == ("time", "height", "latitude", "longitude")


def test_a_cube_is_drawn_once_on_a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HASTEN_CACHE_DIR", str(tmp_path))
    small = DrawnCube(num_times=2, num_levels=2, num_latitudes=4, num_longitudes=8)
    path = synth.drawn_file(small)
    written = path.stat().st_mtime_ns
    assert synth.drawn_file(small) == path
    assert path.stat().st_mtime_ns == written
    assert synth.drawn_file(DrawnCube(**{**vars(small), "seed": 1})) != path
