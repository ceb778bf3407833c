"""Regridding gives what direct interpolation and averaging give, on every kind of grid that files have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import xarray
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hasten.core.errors import DataError
from hasten.data.cube.regrid import Grid, regridder

LATITUDES = tuple(np.linspace(90, -90, 37).tolist())
LONGITUDES = tuple((np.arange(72) * 5.0).tolist())
GLOBE = Grid(LATITUDES, LONGITUDES)


def smooth(grid: Grid) -> torch.Tensor:
    """A field that is smooth on the sphere, [latitude, longitude]."""
    latitude, longitude = np.deg2rad(grid.latitude)[:, None], np.deg2rad(grid.longitude)[None]
    values = (
        np.sin(latitude)
        + 0.5 * np.cos(latitude) * np.cos(longitude - 1)
        + 0.2 * np.cos(latitude) ** 2 * np.sin(2 * longitude)
    )
    return torch.from_numpy(values).float()


def area_means(field: NDArray[np.float64], source: Grid, target: Grid) -> NDArray[np.float64]:
    """Average over the cells of the target, by cutting them into many points of equal area."""
    fine = 240
    rows, columns = target.shape
    edges = np.sin(np.deg2rad(np.linspace(90, -90, rows + 1)))
    means = np.empty(target.shape)
    source_edges = np.concatenate([[90], (np.array(source.latitude)[1:] + np.array(source.latitude)[:-1]) / 2, [-90]])
    step = source.longitude[1] - source.longitude[0]
    for row, column in np.ndindex(rows, columns):
        sines = np.linspace(edges[row], edges[row + 1], 2 * fine + 1)[1::2]
        near = np.searchsorted(-source_edges, -np.rad2deg(np.arcsin(sines))) - 1
        turns = (column + (np.arange(fine) + 0.5) / fine) * 360 / columns
        at = np.round((turns - source.longitude[0]) / step).astype(int) % source.shape[1]
        means[row, column] = field[np.ix_(near, at)].mean()
    return means


def test_bilinear_is_what_xarray_interpolates() -> None:
    fields = torch.randn(3, *GLOBE.shape, generator=torch.Generator().manual_seed(0))
    target = Grid.regular(50, 100)
    data = xarray.DataArray(
        fields.numpy(), dims=("n", "lat", "lon"), coords={"lat": list(LATITUDES), "lon": list(LONGITUDES)}
    )
    around = xarray.concat([data, data.isel(lon=[0]).assign_coords(lon=[360.0])], "lon")
    right = around.interp(lat=list(target.latitude), lon=list(target.longitude)).values
    np.testing.assert_allclose(regridder(GLOBE, target, "bilinear")(fields).numpy(), right, atol=1e-5)


def test_conservative_is_the_mean_over_the_area() -> None:
    field = np.random.default_rng(0).normal(size=GLOBE.shape)
    target = Grid.regular(7, 10)
    regrid = regridder(GLOBE, target)
    assert regrid.ways == ("conservative", "conservative")
    values = regrid(torch.from_numpy(field))
    np.testing.assert_allclose(values.numpy(), area_means(field, GLOBE, target), atol=0.02)


def test_xarray_regrid_gives_the_same_where_it_is_exact() -> None:
    """It extends the first and last row beyond the poles, so those rows of a conservative target are not exact."""
    pytest.importorskip("xarray_regrid")
    source, target = Grid.regular(36, 72), Grid.regular(12, 24)
    field = np.random.default_rng(0).normal(size=source.shape)
    axes = {"latitude": list(source.latitude), "longitude": list(source.longitude)}
    data: Any = xarray.DataArray(field, dims=tuple(axes), coords=axes)
    wanted = xarray.Dataset(coords={"latitude": list(target.latitude), "longitude": list(target.longitude)})
    right = data.regrid.conservative(wanted, latitude_coord="latitude").transpose(*axes).values
    values = regridder(source, target, "conservative")(torch.from_numpy(field)).numpy()
    np.testing.assert_allclose(values[1:-1], right[1:-1], atol=1e-6)
    areas = -np.diff(np.sin(np.deg2rad(np.linspace(90, -90, 37))))[:, None]
    exact = (field * areas).reshape(12, 3, 24, 3).sum((1, 3)) / (3 * areas.reshape(12, 3).sum(1)[:, None])
    np.testing.assert_allclose(values, exact, atol=1e-6)
    linear = data.regrid.linear(wanted).transpose(*axes).values
    inside = np.isfinite(linear)
    assert inside.sum() > 0.8 * inside.size
    np.testing.assert_allclose(
        regridder(source, target, "bilinear")(torch.from_numpy(field))[inside], linear[inside], atol=1e-6
    )


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(3, 60), columns=st.integers(3, 90), to_rows=st.integers(2, 80), to_columns=st.integers(2, 80),
    method=st.sampled_from(["auto", "bilinear", "conservative"]),
)  # fmt: skip
def test_constants_stay_and_means_are_kept(rows: int, columns: int, to_rows: int, to_columns: int, method: str) -> None:
    source, target = Grid.regular(rows, columns), Grid.regular(to_rows, to_columns)
    regrid = regridder(source, target, method)
    np.testing.assert_allclose(regrid(torch.full(source.shape, 3.0)).numpy(), 3.0, rtol=1e-5)
    if method == "conservative":
        field = torch.randn(source.shape, generator=torch.Generator().manual_seed(rows))
        before, after = (
            np.average(f, weights=_areas(g), axis=0).mean() for f, g in ((field, source), (regrid(field), target))
        )
        assert abs(before - after) < 1e-5


def _areas(grid: Grid) -> NDArray[np.float64]:
    return -np.diff(np.sin(np.deg2rad(np.linspace(90, -90, grid.shape[0] + 1))))


@pytest.mark.parametrize("method", ["bilinear", "conservative"])
def test_longitudes_may_start_anywhere_and_latitudes_may_ascend(method: str) -> None:
    turned = Grid(LATITUDES[::-1], tuple((np.arange(72) * 5.0 - 180).tolist()))
    target = Grid.regular(20, 30)
    one, other = (regridder(grid, target, method)(smooth(grid)) for grid in (GLOBE, turned))
    np.testing.assert_allclose(one.numpy(), other.numpy(), atol=1e-5)
    np.testing.assert_allclose(one.numpy(), smooth(target).numpy(), atol=0.02)


def test_a_repeated_meridian_counts_once() -> None:
    repeated = Grid(LATITUDES, (*LONGITUDES, 360.0))
    field = smooth(GLOBE)
    target = Grid.regular(9, 12)
    again = torch.cat([field, field[:, :1]], 1)
    np.testing.assert_allclose(
        regridder(repeated, target)(again).numpy(), regridder(GLOBE, target)(field).numpy(), atol=1e-6
    )


@pytest.mark.parametrize("method", ["bilinear", "conservative"])
@pytest.mark.parametrize("order", [1, -1])
def test_a_repeated_meridian_of_the_target_has_the_values_of_the_first(method: str, order: int) -> None:
    target = Grid(LATITUDES, tuple(np.linspace(0, 360, 37)[::order].tolist()))
    made = regridder(GLOBE, target, method)(smooth(GLOBE))
    torch.testing.assert_close(made[:, 0], made[:, -1], rtol=0, atol=1e-6)  # sums in another order on some machines
    assert made.isfinite().all()
    assert torch.allclose(made, smooth(target), atol=0.02)


def test_missing_values_have_no_weight() -> None:
    field = torch.full((2, *GLOBE.shape), 5.0)
    field[0, 10:20, 30:50] = torch.nan
    field[0, 0, 0] = torch.inf
    values = regridder(GLOBE, Grid.regular(18, 36))(field)
    assert values[0].isnan().any()
    assert not values[1].isnan().any()
    np.testing.assert_allclose(values[0][~values[0].isnan()].numpy(), 5.0, rtol=1e-5)
    missing = float(values[0].isnan().float().mean())
    assert 0.05 < missing < 0.1  # 10 of 37 rows and 20 of 72 columns


def test_beyond_the_outermost_row_bilinear_keeps_it() -> None:
    source = Grid.regular(10, 20)
    values = regridder(source, GLOBE, "bilinear")(smooth(source))
    np.testing.assert_allclose(values[0].numpy(), values[1].numpy(), atol=1e-6)


def test_a_part_of_the_globe() -> None:
    part = Grid(tuple(np.linspace(60, 30, 31).tolist()), tuple(np.linspace(-10, 30, 41).tolist()))
    over = Grid.over(part, 10, 20)
    assert over.latitude[0] < 60.5
    assert over.longitude[0] > -10.5
    np.testing.assert_allclose(regridder(part, over)(smooth(part)).numpy(), smooth(over).numpy(), atol=0.01)
    with pytest.raises(DataError, match=r"the target has the latitude .* and the source ends at 29.5 and 60.5 degrees"):
        regridder(part, Grid.regular(8, 8))


@pytest.mark.parametrize(
    ("latitude", "longitude"),
    [((0, 10, 5), (0, 1)), ((0, 100), (0, 1)), ((0, float("nan")), (0, 1)), ((0, 1), (0, 400)), ((), (0, 1))],
)
def test_values_that_are_no_grid_are_refused(latitude: tuple[float, ...], longitude: tuple[float, ...]) -> None:
    with pytest.raises(DataError):
        Grid(latitude, longitude)


def test_fields_on_another_grid_are_refused() -> None:
    with pytest.raises(DataError, match=r"the regridder is for \(37, 72\) points"):
        regridder(GLOBE, Grid.regular(8, 8))(torch.zeros(3, 4, 5))


def test_weights_are_computed_once() -> None:
    assert regridder(GLOBE, Grid.regular(8, 8)) is regridder(GLOBE, Grid.regular(8, 8))
