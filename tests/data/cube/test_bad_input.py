"""Files that cannot be used are refused with the file, the variable and what to do; special but valid ones are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray

from hasten.core.errors import CorruptError, DataError
from hasten.data.cube.open import open_cube

pytestmark = pytest.mark.filterwarnings("ignore::xarray.SerializationWarning")
Change = Callable[[xarray.Dataset], xarray.Dataset]


def fields() -> xarray.Dataset:
    values = np.random.default_rng(0).normal(280, 10, (4, 5, 6)).astype("f4")
    return xarray.Dataset(
        {"t": (("time", "lat", "lon"), values, {"units": "K"})},
        coords={
            "time": ("time", np.arange(4.0), {"units": "days since 2001-01-01"}),
            "lat": ("lat", np.linspace(60, -60, 5), {"units": "degrees_north"}),
            "lon": ("lon", np.arange(6) * 60.0, {"units": "degrees_east"}),
        },
    )


def attrs(name: str, **changes: Any) -> Change:
    def change(data: xarray.Dataset) -> xarray.Dataset:
        kept = {**data[name].attrs, **changes}
        data[name].attrs = {key: value for key, value in kept.items() if value is not None}
        return data

    return change


def axis(name: str, values: Any, **changes: Any) -> Change:
    return lambda data: attrs(name, **changes)(data.assign_coords({name: (name, np.asarray(values), data[name].attrs)}))


def write(path: Path, change: Change, kind: str = "netcdf4") -> Path:
    data = change(fields())
    encoding: dict[str, Any] = {name: {"_FillValue": None} for name in data.variables if data[name].dtype.kind == "f"}
    data.to_netcdf(path, engine=kind, format="NETCDF4" if kind == "netcdf4" else "NETCDF3_64BIT", encoding=encoding)
    return path


REFUSED: list[tuple[Change, str]] = [
    (attrs("time", units=None), "time has no units, and a time needs such as 'hours since"),
    (attrs("time", units="K"), "time has the units 'K'"),
    (attrs("time", units="days since yesterday"), "'days since yesterday' .* not dates"),
    (attrs("time", units="months since 2001-01-01"), "'months since 2001-01-01' .* only allowed for '360_day'"),
    (attrs("time", units="days since 2001-02-30"), "'days since 2001-02-30' .* not dates"),
    (attrs("time", calendar="martian"), "calendar 'martian'"),
    (attrs("time", units="days since -0005-01-01"), "are not dates: this date/calendar/year zero convention"),
    (axis("time", [0, 1, 2, 1e300]), r"time has the values 0 to 1e\+300"),
    (axis("time", [0, 1, 1, 2]), r"time must ascend, but 1 is followed by 1 \(index 2\)"),
    (axis("time", [3, 2, 1, 0]), "time must ascend, but 3 is followed by 2"),
    (lambda data: data.isel(time=[]), "time claims 0 values"),
    (attrs("lat", units=None), "lat has no units, and latitude needs degrees_north.*ncatted -a units,lat"),
    (attrs("lat", units="radians"), "lat has the units 'radians'"),
    (axis("lat", [100, 50, 0, -50, -100]), "lat has values from -100 to 100"),
    (axis("lat", [60, 30, np.nan, -30, -60]), "lat has no value at index 2"),
    (axis("lon", [0, 60, 120, -180, -120, -60]), "120 is followed by -180 .*Sort the file by longitude"),
    (lambda data: data.drop_vars("lat"), "t: the dimension lat has no coordinate"),
    (lambda data: data.isel(time=0, drop=True), "t has the dimensions lat, lon, .*Needed are time"),
    (lambda data: data.transpose("lat", "lon", "time"), "latitude, longitude, time. Needed are time"),
    (lambda data: data.expand_dims(member=2, axis=1), "t: the dimension member has no coordinate"),
    (attrs("t", scale_factor="large"), "t: scale_factor is 'large', not a number"),
    (attrs("t", scale_factor=np.nan), "t has scale_factor nan"),
    (attrs("t", scale_factor=0.0), "t has scale_factor 0.0"),
    (attrs("t", missing_value="NA"), "t: missing_value is 'NA', not a number"),
    (attrs("t", valid_range=np.array([1.0, 2.0, 3.0])), "t: valid_range needs two numbers, and has 3"),
    (attrs("t", valid_range=np.array([300.0, 200.0])), "t has no valid values: .* from 300.0 to 200.0"),
    (lambda data: data.drop_vars("t"), "has no variable with a time"),
]


@pytest.mark.parametrize("kind", ["netcdf4", "scipy"])
@pytest.mark.parametrize(("change", "message"), REFUSED, ids=[message[:40] for _, message in REFUSED])
def test_what_cannot_be_right_is_refused_with_file_and_variable(
    change: Change, message: str, kind: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "bad.nc", change, kind)
    with pytest.raises(DataError, match=rf"(?s)bad\.nc.*{message}"):
        open_cube([path])
    assert [file.name for file in tmp_path.iterdir()] == ["bad.nc"]


READ: list[Change] = [
    attrs("time", calendar="360_day", units="days since 2001-02-30"),
    attrs("time", calendar="360_day", units="months since 2001-01-01"),
    attrs("time", calendar="noleap"),
    attrs("lat", units="degrees"),
    axis("lat", [-60, -30, 0, 30, 60]),
    axis("lon", [-180, -120, -60, 0, 60, 120]),
    lambda data: data.rename(lat="latitude", lon="longitude", time="valid_time"),
    lambda data: data.rename(lat="a", lon="b", time="c"),
    attrs("t", missing_value=np.float32(280), valid_min=np.float32(265), valid_max=np.float32(295)),
    attrs("t", scale_factor=0.1, add_offset=2.0),
    lambda data: data * np.nan,
]


@pytest.mark.parametrize("kind", ["netcdf4", "scipy"])
@pytest.mark.parametrize("change", READ)
def test_special_but_valid_files_are_read_as_netcdf4_reads_them(change: Change, kind: str, tmp_path: Path) -> None:
    path = write(tmp_path / "good.nc", change, kind)
    cube = open_cube([path])
    assert [part.role for part in cube.variables["t"].axes] == ["time", "latitude", "longitude"]
    with netCDF4.Dataset(path) as file:
        right = np.ma.filled(file["t"][:].astype("f4"), np.nan)
        for part in cube.variables["t"].axes:
            assert np.array_equal(part.values, file[part.name][:])
    np.testing.assert_allclose(cube.read("t", 0, 4), right, rtol=1e-6)


LATER = axis("time", [4, 5, 6, 7])
UNEQUAL: list[tuple[Change, str]] = [
    (attrs("time"), r"t: the times of .*a\.nc and .*b\.nc overlap"),
    (
        lambda data: attrs("time", calendar="360_day")(LATER(data)),
        r"a\.nc has the calendar standard, and .*b\.nc has 360_day",
    ),
    (lambda data: attrs("t", units="degC")(LATER(data)), r"a\.nc: t has the units 'K', and .*b\.nc has 'degC'"),
    (lambda data: LATER(data).isel(lat=slice(4)), r"t: the latitude of .*b\.nc differs: 5 and 4 values"),
    (lambda data: LATER(data).isel(lat=slice(None, None, -1)), r"latitude of .*b\.nc differs: 60 and -60 at index 0"),
    (lambda data: axis("lon", np.arange(6) * 60 - 180)(LATER(data)), r"longitude of .*b\.nc differs: 0 and -180"),
    (lambda data: LATER(data).rename(t="s"), r"b\.nc: There is no variable t\. There are: s"),
]


@pytest.mark.parametrize(("change", "message"), UNEQUAL, ids=[message[:40] for _, message in UNEQUAL])
def test_files_that_do_not_fit_together(change: Change, message: str, tmp_path: Path) -> None:
    first, second = write(tmp_path / "a.nc", lambda data: data), write(tmp_path / "b.nc", change)
    with pytest.raises(DataError, match=message):
        open_cube([first, second])


def test_files_are_joined_by_their_times_whatever_their_order_and_units(tmp_path: Path) -> None:
    first = write(tmp_path / "b.nc", lambda data: data)
    hours = write(tmp_path / "a.nc", axis("time", np.arange(4) * 24, units="hours since 2001-01-05"))
    cube = open_cube([hours, first])
    assert cube.variables["t"].shape == (8, 5, 6)
    with xarray.open_dataset(first) as one, xarray.open_dataset(hours) as other:
        right = np.concatenate([one["t"].values, other["t"].values])
    assert np.array_equal(cube.read("t", 2, 7), right[2:7])
    times = cube.variables["t"].axes[0]
    assert (times.units, times.values.tolist()) == ("hours since 2001-01-05", [24.0 * day for day in range(-4, 4)])


@pytest.mark.parametrize("kind", ["netcdf4", "scipy"])
@pytest.mark.parametrize("frac", [0.0, 0.1, 0.5, 0.99])
def test_truncated_files(frac: float, kind: str, tmp_path: Path) -> None:
    path = write(tmp_path / "cut.nc", lambda data: data, kind)
    path.write_bytes(path.read_bytes()[: int(frac * path.stat().st_size)])
    with pytest.raises(CorruptError, match=r"cut\.nc is truncated or corrupt"):
        open_cube([path])


@pytest.mark.parametrize("content", [b"<html>404</html>", b"CDF\x09", b"\x89HDF\r\n\x1a\n", b"CDF\x01", b"GRIB"])
def test_what_is_no_file_of_such_kind(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bad.nc"
    path.write_bytes(content)
    with pytest.raises(CorruptError, match=r"bad\.nc is truncated or corrupt"):
        open_cube([path])


def test_names_that_do_not_exist(tmp_path: Path) -> None:
    path = write(tmp_path / "a.nc", lambda data: data.rename(t="temperature"))
    with pytest.raises(DataError, match=r"a\.nc: There is no variable temprature\. Is it temperature\?"):
        open_cube([path], variables=["temprature"])
    with pytest.raises(DataError, match=r"b\.nc does not exist"):
        open_cube([tmp_path / "b.nc"])
    cube = open_cube([path])
    with pytest.raises(DataError, match="temperature has the times 0 to 4: 2 to 5 is not a part"):
        cube.read("temperature", 2, 5)
