"""Files with gridded data: what is found in them, how values are decoded, and how files are joined."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray

from benchmarks.public_data import NOT_THERE, PUBLIC_DATA
from hasten.core.errors import DataError
from hasten.data.cube.open import open_cube

CLIMATE = PUBLIC_DATA / "climate"


@pytest.fixture(scope="module")
def climate() -> Path:
    if not CLIMATE.is_dir():
        pytest.skip(NOT_THERE)
    return CLIMATE


@pytest.mark.filterwarnings("ignore:variable '.' has non-conforming:xarray.SerializationWarning")
def test_reanalysis_is_decoded_as_xarray_does(climate: Path) -> None:
    path = climate / "eraint_uvz.nc"
    cube = open_cube([path])
    with xarray.open_dataset(path) as right:
        assert list(cube.variables) == ["z", "u", "v"]
        for name, variable in cube.variables.items():
            assert np.array_equal(cube.read(name, 0, 2), right[name].values.astype(np.float32))
            assert variable.shape == (2, 3, 241, 480)
            assert variable.way == "direct access"
            assert variable.standard_name == right[name].attrs.get("standard_name", "")
            assert [axis.role for axis in variable.axes] == ["time", "level", "latitude", "longitude"]
    month, _, latitude, longitude = cube.variables["u"].axes
    assert (month.name, month.values.tolist(), month.units, month.calendar) == ("month", [1, 7], "", None)
    assert latitude.values[0] == 90  # descending, as stored
    assert longitude.values[0] == -180


def test_a_mask_without_a_time_is_refused_with_the_reason(climate: Path) -> None:
    with pytest.raises(DataError, match=r"basin has the dimensions Z, Y, X, which measure level, latitude, longitude"):
        open_cube([climate / "basin_mask.nc"])
