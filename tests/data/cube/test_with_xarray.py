"""Zarr, GRIB and NetCDF-3 with 64-bit sizes: the values are those of xarray, and errors name file and variable."""

from __future__ import annotations

import pickle
from itertools import product
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray

from hasten.core.errors import CorruptError, DataError
from hasten.data.cube.open import open_cube

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")  # of zarr


def fields() -> xarray.Dataset:
    values = np.random.default_rng(0).normal(size=(10, 3, 20, 30)).astype("f4")
    values[0, 0, 0, 0] = np.nan
    return xarray.Dataset(
        {"t": (("time", "level", "lat", "lon"), values, {"units": "K", "standard_name": "air_temperature"})},
        coords={
            "time": ("time", np.arange(10), {"units": "hours since 2001-01-01", "calendar": "360_day"}),
            "level": ("level", [1000.0, 850.0, 500.0], {"units": "hPa"}),
            "lat": ("lat", np.linspace(60, -60, 20), {"units": "degrees_north"}),
            "lon": ("lon", np.arange(30) * 10.0, {"units": "degrees_east"}),
        },
    )


PACKED = {"dtype": "i2", "scale_factor": 0.001, "add_offset": 1.0, "_FillValue": -32768}


@pytest.mark.parametrize("packing", [{}, PACKED], ids=["float32", "packed"])
@pytest.mark.parametrize("layout", [{"zarr_format": 2}, {"zarr_format": 3}, {"zarr_format": 3, "shards": (8, 3, 20, 30)}])
def test_a_zarr_store(layout: dict[str, Any], packing: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "t.zarr"
    shards = {name: size for name, size in layout.items() if name == "shards"}
    encoding = {"t": {**packing, **shards, "chunks": (4, 1, 20, 30)}}
    fields().to_zarr(path, zarr_format=layout["zarr_format"], encoding=encoding)
    cube = pickle.loads(pickle.dumps(open_cube([path])))
    variable = cube.variables["t"]
    assert (variable.way, variable.axes[0].calendar, variable.units) == ("zarr", "360_day", "K")
    right = xarray.open_zarr(path, decode_times=False)["t"].values
    assert np.isnan(right).sum() == 1
    np.testing.assert_allclose(cube.read("t", 0, 10), right, rtol=0, atol=1e-6)
    np.testing.assert_allclose(cube.read("t", 3, 9), right[3:9], rtol=0, atol=1e-6)


def test_variables_of_a_store_are_in_the_order_of_their_names(tmp_path: Path) -> None:
    names = ["w", "t", "q", "z", "u"]
    xarray.merge([fields().rename(t=name) for name in names]).to_zarr(tmp_path / "t.zarr", zarr_format=2, consolidated=False)
    assert list(open_cube([tmp_path / "t.zarr"]).variables) == sorted(names)


def test_a_store_that_was_replaced_is_opened_anew(tmp_path: Path) -> None:
    path = tmp_path / "t.zarr"
    fields().to_zarr(path)
    assert open_cube([path]).read("t", 0, 10).shape[0] == 10
    fields().isel(time=slice(4), lat=slice(5)).to_zarr(path, mode="w")
    assert open_cube([path]).read("t", 0, 4).shape == (4, 3, 5, 30)


def test_a_corrupt_chunk_of_a_zarr_store(tmp_path: Path) -> None:
    path = tmp_path / "t.zarr"
    fields().to_zarr(path, zarr_format=3, encoding={"t": {"chunks": (10, 3, 20, 30)}})
    cube = open_cube([path])
    (path / "t" / "c" / "0" / "0" / "0" / "0").write_bytes(b"damaged")
    with pytest.raises(CorruptError, match=r"t\.zarr: t: values cannot be read"):
        cube.read("t", 0, 10)
    (path / "zarr.json").write_text("{", encoding="ascii")
    with pytest.raises(CorruptError, match=r"t\.zarr is truncated or corrupt"):
        open_cube([path])


def test_a_folder_that_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is a folder, and not a Zarr store. Give the files in it"):
        open_cube([tmp_path])


def test_netcdf_3_with_64_bit_sizes(tmp_path: Path) -> None:
    path = tmp_path / "t.nc"
    with netCDF4.Dataset(path, "w", format="NETCDF3_64BIT_DATA") as file:
        for name, values, units in (
            ("time", [0, 1], "days since 2001-01-01"),
            ("lat", [1, 0], "degrees_north"),
            ("lon", [0, 1, 2], "degrees_east"),
        ):
            file.createDimension(name, len(values))
            file.createVariable(name, "f8", (name,))[:] = values
            file[name].units = units
        file.createVariable("t", "i8", ("time", "lat", "lon"))[:] = np.arange(12).reshape(2, 2, 3)
    cube = open_cube([path])
    assert cube.variables["t"].way == "xarray with netcdf4"
    assert np.array_equal(cube.read("t", 0, 2), np.arange(12.0).reshape(2, 2, 3))
    path.write_bytes(path.read_bytes()[:170])
    with pytest.raises(CorruptError, match=r"t\.nc is truncated"):
        open_cube([path])


def write_grib(path: Path, values: Any, names: tuple[str, ...] = ("t",)) -> None:
    """Write fields at two pressures, and others near the ground."""
    import eccodes

    with path.open("wb") as file:
        for day, level, name in product(range(3), range(2), names):
            sample = "regular_ll_pl_grib2" if name == "t" else "regular_ll_sfc_grib2"
            message = eccodes.codes_grib_new_from_samples(sample)
            settings = {
                "Ni": 36, "Nj": 19, "latitudeOfFirstGridPointInDegrees": 90, "latitudeOfLastGridPointInDegrees": -90,
                "longitudeOfFirstGridPointInDegrees": 0, "longitudeOfLastGridPointInDegrees": 350,
                "iDirectionIncrementInDegrees": 10, "jDirectionIncrementInDegrees": 10, "dataDate": 20200101 + day,
                "dataTime": 0, "bitmapPresent": 1, "missingValue": 9999.0, "bitsPerValue": 16,
                **({"level": (850, 500)[level]} if name == "t" else {}), "shortName": name,
            }  # fmt: skip
            for setting, value in settings.items():
                eccodes.codes_set(message, setting, value)
            eccodes.codes_set_values(message, values[day, level].ravel())
            eccodes.codes_write(message, file)
            eccodes.codes_release(message)


def test_grib(tmp_path: Path) -> None:
    path = tmp_path / "t.grib"
    values = np.random.default_rng(0).normal(270, 10, (3, 2, 19, 36))
    values[0, 0, 0, 0] = 9999
    write_grib(path, values)
    cube = open_cube([path])
    variable = cube.variables["t"]
    assert (variable.way, variable.standard_name, variable.units) == ("xarray with cfgrib", "air_temperature", "K")
    assert variable.axes[1].values.tolist() == [850, 500]
    read = cube.read("t", 0, 3)
    assert np.argwhere(np.isnan(read)).tolist() == [[0, 0, 0, 0]]
    np.testing.assert_allclose(read[1:], values[1:], atol=0.01)  # GRIB keeps 16 bits
    assert [file.name for file in tmp_path.iterdir()] == ["t.grib"]


def test_grib_that_is_truncated_or_mixed_is_refused_and_not_read_in_part(tmp_path: Path) -> None:
    path, values = tmp_path / "t.grib", np.full((3, 2, 19, 36), 270.0)
    write_grib(path, values)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(CorruptError, match=r"t\.grib is truncated or corrupt"):
        open_cube([path])
    write_grib(path, values, ("t", "2t", "10u"))
    with pytest.raises(DataError, match=r"t\.grib holds variables with different levels, .*: grib_copy t\.grib"):
        open_cube([path])
