"""NetCDF-4 files as other libraries write them: the values are those that h5py and xarray read, whichever way is taken."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
import xarray
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hasten.core.errors import CorruptError, DataError
from hasten.data.cube.hdf5 import read_hdf5
from hasten.data.cube.open import open_cube

SHAPE = (7, 5, 30, 41)
CHUNKS = (2, 3, 16, 20)


def write(path: Path, dtype: str = "f4", *, attrs: dict[str, Any] | None = None, **layout: Any) -> None:
    """Write a field with coordinates, with some times never written."""
    rng = np.random.default_rng(7)
    with h5py.File(path, "w") as file:
        axes = {
            "time": (np.arange(SHAPE[0], dtype=float), "hours since 2001-01-01"),
            "level": (np.arange(SHAPE[1], dtype=float), "hPa"),
            "lat": (np.linspace(60, -60, SHAPE[2]), "degrees_north"),
            "lon": (np.arange(SHAPE[3]) * 5.0, "degrees_east"),
        }
        field = file.create_dataset("q", SHAPE, dtype, **layout)
        for at, (name, (values, units)) in enumerate(axes.items()):
            file[name] = values
            file[name].make_scale(name)
            file[name].attrs["units"] = units
            field.dims[at].attach_scale(file[name])
        field.attrs.update({"units": "kg kg-1", **(attrs or {})})
        field[:5] = rng.integers(-100, 100, (5, *SHAPE[1:])).astype(dtype)


WAYS = [
    (
        {"chunks": CHUNKS, "compression": "gzip", "shuffle": True, "fletcher32": True},
        "chunks by threads, shuffle, zlib, fletcher32",
    ),
    ({"chunks": CHUNKS, "compression": "gzip"}, "chunks by threads, zlib"),
    ({"chunks": CHUNKS, "shuffle": True}, "chunks by threads, shuffle"),
    ({"chunks": CHUNKS}, "chunks by threads"),
    ({"chunks": (1, *SHAPE[1:]), "fletcher32": True}, "chunks by threads, fletcher32"),
    ({}, "direct access"),
    ({"chunks": CHUNKS, "compression": "lzf"}, "h5py: filter lzf"),
    ({"chunks": CHUNKS, "scaleoffset": 0}, "h5py: filter scaleoffset"),
]


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f8", "<i2", ">i2", "u1", "<i4"])
@pytest.mark.parametrize(("layout", "way"), WAYS, ids=[way for _, way in WAYS])
def test_every_layout_gives_the_values_of_h5py(layout: dict[str, Any], way: str, dtype: str, tmp_path: Path) -> None:
    if "scaleoffset" in layout and dtype in {">i2", ">f4", "<f4", "<f8"}:
        pytest.skip("this filter needs other settings for floats")
    path = tmp_path / "q.nc"
    write(path, dtype, **layout, fillvalue=3)
    array = pickle.loads(pickle.dumps(read_hdf5(path)["q"]))
    assert array.way == way
    with h5py.File(path) as file:
        right = file["q"][:]
    assert np.array_equal(array.all(), right)
    part = (slice(1, 6), slice(2, 4), slice(3, 29), slice(19, 41))
    assert np.array_equal(array.load(part), right[part])


@pytest.mark.parametrize("dtype", ["i2", ">i2", "u2", "i1", "f4"])
def test_packed_values_are_those_of_xarray(dtype: str, tmp_path: Path) -> None:
    path = tmp_path / "q.nc"
    kind = np.dtype(dtype).type
    attrs = {"scale_factor": 0.013, "add_offset": 270.0, "_FillValue": kind(7), "missing_value": kind(7)}
    write(path, dtype, attrs=attrs, chunks=(7, *SHAPE[1:]), compression="gzip", shuffle=True)
    cube = open_cube([path])
    with xarray.open_dataset(path, engine="netcdf4") as data:
        right = data["q"].values.astype(np.float64)
    values = cube.read("q", 0, SHAPE[0])
    assert np.isnan(right).any()
    np.testing.assert_allclose(values, right, rtol=1.3e-7, atol=0)


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_and_parts_do_not_change_values(threads: int, tmp_path: Path) -> None:
    path = tmp_path / "q.nc"
    write(path, chunks=CHUNKS, compression="gzip", shuffle=True)
    cube, before = open_cube([path]), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        whole = cube.read("q", 0, 7)
        parts = [cube.read("q", start, min(start + 3, 7)) for start in (0, 3, 6)]
    finally:
        torch.set_num_threads(before)
    assert np.array_equal(whole, np.concatenate(parts), equal_nan=True)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_shape_of_chunks_and_any_part(data: st.DataObject, tmp_path: Path) -> None:
    chunks = tuple(data.draw(st.integers(1, size), label="chunk") for size in SHAPE)
    path = tmp_path / "q.nc"
    write(path, "i2", chunks=chunks, shuffle=data.draw(st.booleans()), compression="gzip", compression_opts=1)
    starts = [data.draw(st.integers(0, size - 1)) for size in SHAPE]
    part = tuple(slice(start, data.draw(st.integers(start + 1, size))) for start, size in zip(starts, SHAPE, strict=True))
    array = read_hdf5(path)["q"]
    with h5py.File(path) as file:
        assert np.array_equal(array.load(part), file["q"][part])


def test_every_damaged_byte_of_a_checked_chunk_is_found(tmp_path: Path) -> None:
    path = tmp_path / "q.nc"
    write(path, chunks=CHUNKS, compression="gzip", shuffle=True, fletcher32=True)
    array: Any = read_hdf5(path)["q"]
    _, offset, length, _ = (int(value) for value in array.index[3])
    good = path.read_bytes()
    for at in range(offset, offset + length, 97):
        path.write_bytes(good[:at] + bytes([good[at] ^ 16]) + good[at + 1 :])
        with pytest.raises(CorruptError, match=r"q\.nc: q: chunk 3 at byte .* is corrupt"):
            array.all()


def test_a_chunk_that_expands_beyond_its_size_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "q.nc"
    write(path, chunks=CHUNKS, compression="gzip")
    with h5py.File(path, "a") as file:
        import zlib

        file["q"].id.write_direct_chunk((0, 0, 0, 0), zlib.compress(bytes(2**20)))
    with pytest.raises(CorruptError, match=r"a zlib stream is truncated, or longer than 7,680 bytes"):
        open_cube([path]).read("q", 0, 1)


def test_a_file_that_was_truncated_after_it_was_opened(tmp_path: Path) -> None:
    path = tmp_path / "q.nc"
    write(path, chunks=CHUNKS, compression="gzip")
    cube = open_cube([path])
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(CorruptError, match="the file ends after"):
        cube.read("q", 0, 7)
    with pytest.raises(CorruptError, match=r"truncated or corrupt"):
        open_cube([path])


def test_petabytes_that_a_header_claims(tmp_path: Path) -> None:
    path = tmp_path / "q.nc"
    with h5py.File(path, "w") as file:
        for name, (size, units) in {"time": (3, "hours since 2001-01-01"), "lat": (2**50, "degrees_north")}.items():
            file.create_dataset(name, (size,), "f8", chunks=(3,))
            file[name].make_scale(name)
            file[name].attrs["units"] = units
        file["lon"], file["time"][:] = np.arange(4.0), [0, 1, 2]
        file["lon"].make_scale("lon")
        file["lon"].attrs["units"] = "degrees_east"
        field = file.create_dataset("q", (3, 2**50, 4), "f4", chunks=(1, 64, 4))
        for at, name in enumerate(("time", "lat", "lon")):
            field.dims[at].attach_scale(file[name])
    with pytest.raises(DataError, match=r"q\.nc: lat claims 1,125,899,906,842,624 values"):
        open_cube([path])
