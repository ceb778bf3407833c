"""Files with gridded data become a store, windows and batches of one grid."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from hasten.core.errors import CorruptError, DataError
from hasten.data import Store, Stream
from hasten.data.convert.job import convert
from hasten.data.cube.fields import Fields, gaps
from hasten.data.cube.open import open_cube
from hasten.data.cube.regrid import Grid, regridder
from hasten.data.cube.windows import CubeWindows

HOUR_ZERO = 978_307_200
"""2001-01-01, in seconds since 1970."""


def data(first: int = 0, times: int = 12, *, rows: int = 19) -> xarray.Dataset:
    rng = np.random.default_rng(first)
    q = rng.normal(size=(times, 2, rows, 36)).astype("f4")
    p = rng.normal(size=(times, rows, 36)).astype("f4")
    return xarray.Dataset(
        {"q": (("time", "level", "lat", "lon"), q, {"units": "K"}), "p": (("time", "lat", "lon"), p, {"units": "Pa"})},
        coords={
            "time": ("time", first + np.arange(times), {"units": "hours since 2001-01-01"}),
            "level": ("level", [850.0, 500.0], {"units": "hPa"}),
            "lat": ("lat", np.linspace(90, -90, rows), {"units": "degrees_north"}),
            "lon": ("lon", np.arange(36) * 10.0, {"units": "degrees_east"}),
        },
    )


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    folder.mkdir()
    data(12).to_netcdf(folder / "a.nc")  # the order of names is not that of times
    encoding = {"q": {"chunksizes": (5, 1, 19, 36), "zlib": True}}
    data(0).to_netcdf(folder / "b.nc", engine="netcdf4", encoding=encoding)
    return folder


def right(folder: Path, grid: tuple[int, int]) -> torch.Tensor:
    """All times, regridded at once."""
    parts = [xarray.load_dataset(file, decode_times=False) for file in sorted(folder.glob("*.nc"), reverse=True)]
    q, p = (np.concatenate([part[name].values for part in parts]) for name in "qp")
    all_fields = torch.from_numpy(np.concatenate([q, p[:, None]], 1))
    source = Grid(tuple(np.linspace(90, -90, 19).tolist()), tuple((np.arange(36) * 10.0).tolist()))
    return regridder(source, Grid.over(source, *grid))(all_fields)


def test_a_folder_becomes_a_store_with_the_facts_that_training_needs(files: Path, tmp_path: Path) -> None:
    made = convert(files, tmp_path / "store", grid=(8, 12))
    store = Store(tmp_path / "store")
    rows = store.take(range(24))
    np.testing.assert_allclose(rows["fields"], right(files, (8, 12)).numpy(), atol=1e-6)
    assert rows["time"].tolist() == [HOUR_ZERO + 3600 * hour for hour in range(24)]
    facts = store.manifest.provenance
    assert [(one["variable"], one["level"]) for one in json.loads(facts["channels"])] == [
        ("q", 850),
        ("q", 500),
        ("p", None),
    ]
    assert len(json.loads(facts["grid"])["longitude"]) == 12
    assert json.loads(facts["time"])["units"] == "seconds since 1970-01-01"
    assert any(remark.startswith("q: read by ") for remark in made.remarks)


def test_windows_of_a_store_are_those_of_the_files_and_resume(files: Path, tmp_path: Path) -> None:
    convert(files, tmp_path / "store", grid=(8, 12), shard_bytes=5_000)
    fields = right(files, (8, 12))
    lazy = CubeWindows(Fields(open_cube(sorted(files.glob("*.nc"))), grid=(8, 12)), length=5, stride=2)
    stream = Stream(
        tmp_path / "store",
        batch_size=4,
        length=5,
        stride=2,
        columns=["fields"],
        form="torch",
        shuffle=False,
        drop_last=False,
    )
    batches = [batch["fields"].clone() for batch in stream]
    windows = torch.cat(batches)
    assert len(windows) == len(lazy) == 10
    for index in range(10):
        torch.testing.assert_close(windows[index], fields[2 * index : 2 * index + 5], atol=1e-6, rtol=0)
        torch.testing.assert_close(lazy[index]["fields"], windows[index], atol=1e-6, rtol=0)
    loaded = next(iter(DataLoader(lazy, batch_size=3, num_workers=1)))
    torch.testing.assert_close(loaded["fields"], windows[:3], atol=1e-6, rtol=0)
    assert loaded["time"][2].tolist() == [HOUR_ZERO + 3600 * hour for hour in (4, 5, 6, 7, 8)]

    shuffled = Stream(tmp_path / "store", batch_size=3, length=5, columns=["fields"], form="torch", seed=3)
    everything = iter(shuffled)
    next(everything)
    state = shuffled.state_dict()
    rest = [batch["fields"].clone() for batch in everything]
    again = Stream(tmp_path / "store", batch_size=3, length=5, columns=["fields"], form="torch", seed=3)
    again.load_state_dict(state)
    assert all(torch.equal(one["fields"], other) for one, other in zip(again, rest, strict=True))


def test_files_that_count_from_different_dates_have_one_time(files: Path, tmp_path: Path) -> None:
    later = data(24)
    later["time"] = ("time", np.arange(12) / 24, {"units": "days since 2001-01-02"})
    later.to_netcdf(files / "c.nc")
    convert(files, tmp_path / "store", grid=(8, 12))
    times = Store(tmp_path / "store").take(range(36))["time"]
    np.testing.assert_allclose(times, HOUR_ZERO + 3600 * np.arange(36), rtol=0, atol=1e-3)
    np.testing.assert_allclose(Fields(open_cube(sorted(files.glob("*.nc")))).times, times, rtol=0, atol=1e-3)


def test_a_file_that_was_deleted_after_it_was_opened(files: Path) -> None:
    fields = Fields(open_cube(sorted(files.glob("*.nc"))))
    (files / "a.nc").unlink()
    with pytest.raises(CorruptError, match=r"a\.nc: q: .* cannot be read: .*No such file"):
        fields.read(12, 24)
    (files / "b.nc").unlink()
    with pytest.raises(CorruptError, match=r"b\.nc: q cannot be read: .*No such file"):
        fields.read(0, 12)


def test_skipped_files_are_counted(files: Path, tmp_path: Path) -> None:
    (files / "notes.txt").write_text("", encoding="ascii")
    assert "skipped files with the ending .txt: 1" in convert(files, tmp_path / "store").remarks


def test_few_times_are_read_at_once_and_chunks_once(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("Stored", "Direct"):
        monkeypatch.setattr(f"hasten.data.cube.stored.{kind}.step_bytes", 4 * 2 * 19 * 36 * 6)
    fields = Fields(open_cube(sorted(files.glob("*.nc"))), grid=(8, 12))
    reads: list[tuple[str, int, int]] = []
    read = fields.cube.read

    def reading(name: str, start: int, stop: int, out: NDArray[np.float32]) -> NDArray[np.float32]:
        reads.append((name, start, stop))
        return read(name, start, stop, out)

    monkeypatch.setattr(fields.cube, "read", reading)
    torch.testing.assert_close(fields.read(0, 24), right(files, (8, 12)), atol=1e-6, rtol=0)
    assert [part for name, *part in reads if name == "q"] == [[0, 5], [5, 10], [10, 12], [12, 18], [18, 24]]


def test_a_zarr_store_and_chosen_variables(tmp_path: Path) -> None:
    data().to_zarr(tmp_path / "z", zarr_format=2)
    convert(tmp_path / "z", tmp_path / "store", columns=["p"], grid=(6, 6))
    assert Store(tmp_path / "store").take([0])["fields"].shape == (1, 1, 6, 6)


def test_a_variable_without_values_is_refused(files: Path, tmp_path: Path) -> None:
    empty = data(24)
    empty["p"][:] = np.nan
    empty.to_netcdf(files / "c.nc")
    with pytest.raises(DataError, match=r"c\.nc: p has only missing values in the times 0 to 11"):
        convert(files, tmp_path / "store", processes=1)
    with pytest.raises(DataError, match="is not a store"):
        Store(tmp_path / "store")


def test_missing_values_are_counted(files: Path, tmp_path: Path) -> None:
    some = data(24)
    some["p"][2, 3:6, 4:9] = np.nan
    some.to_netcdf(files / "c.nc")
    assert "missing values of fields, stored as NaN: 15" in convert(files, tmp_path / "store").remarks


def test_a_corrupt_file_publishes_nothing(files: Path, tmp_path: Path) -> None:
    whole = (files / "a.nc").read_bytes()
    (files / "a.nc").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CorruptError, match=r"a\.nc is truncated or corrupt"):
        convert(files, tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_files_that_do_not_fit_together(files: Path, tmp_path: Path) -> None:
    data(24, rows=10).to_netcdf(files / "c.nc")
    with pytest.raises(DataError, match=r"latitude of .* differs"):
        convert(files, tmp_path / "store")


def test_variables_on_two_grids_are_refused(tmp_path: Path) -> None:
    other = data(rows=10)[["p"]].rename(lat="lat2")
    xarray.merge([data()[["q"]], other]).to_netcdf(tmp_path / "t.nc")
    with pytest.raises(DataError, match=r"t\.nc: the latitude of q and p differs"):
        Fields(open_cube([tmp_path / "t.nc"]))


def test_a_gap_in_time_is_told(files: Path, tmp_path: Path) -> None:
    data(50).to_netcdf(files / "c.nc")
    remarks = convert(files, tmp_path / "store").remarks
    assert "times are missing in 1 places, first after 2001-01-01 23:00:00: windows of the store span them" in remarks
    fields = Fields(open_cube(sorted(files.glob("*.nc"))))
    assert fields.starts(5) == [*range(20), *range(24, 32)]
    assert fields.starts(5, stride=3, first=18, stop=30) == [18, 24]
    assert len(CubeWindows(fields, length=5)) == 28
    with pytest.raises(DataError, match="no window of 25 consecutive times among 36 times, with 1 gaps in all"):
        fields.starts(25)
    assert gaps(np.arange(4.0)) == []


def test_the_command(files: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hasten", "data", "convert", str(files), str(tmp_path / "store")]
    made = subprocess.run([*command, "--grid", "8x12"], capture_output=True, text=True, check=False, env=os.environ)
    assert made.returncode == 0, made.stderr
    assert "24 rows" in made.stdout + made.stderr
    wrong = subprocess.run([*command, "--grid", "8"], capture_output=True, text=True, check=False, env=os.environ)
    assert wrong.returncode != 0
    assert "write ROWSxCOLUMNS, such as 64x64" in wrong.stderr + wrong.stdout
