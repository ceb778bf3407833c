"""Fields of a job in memory, and windows as views."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hasten.core.errors import DataError
from hasten.data.cube.fields import Fields
from hasten.data.cube.open import open_cube
from hasten.recipes.datacube import data
from hasten.recipes.datacube.data import Windows, in_memory
from hasten.recipes.datacube.synth import DrawnCube, write_cube


def test_windows_are_views_and_fields_must_fit_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cube(tmp_path / "c.nc", DrawnCube(num_times=7, num_levels=2))
    fields = Fields(open_cube([tmp_path / "c.nc"], variables=["humidity", "u"]), grid=(32, 64))
    values = in_memory(fields)
    assert values.shape == (7, 4, 32, 64)
    windows = Windows(values, [2, 3, 4], 3)
    assert len(windows) == 3
    assert windows[2].data_ptr() == values[4].data_ptr()
    assert torch.equal(windows[2], values[4:7])
    monkeypatch.setattr(data, "_MEMORY_FRAC", 0.0)
    with pytest.raises(DataError, match="Set a smaller `grid`"):
        in_memory(fields)
