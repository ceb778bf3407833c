"""Physical constraints: analytic cases, the usual five modules, gradients, units, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.datacube.naive_physics import FIVE
from benchmarks.public_data import NOT_THERE, PUBLIC_DATA
from hasten.core.errors import DataError, JobError
from hasten.data.cube.channels import Channel, channels_of
from hasten.data.cube.open import open_cube
from hasten.data.cube.regrid import Grid
from hasten.recipes.datacube.constraints import HEAT_CAPACITY, Constraints, Scales
from hasten.recipes.datacube.quantities import (
    cell_areas,
    is_global,
    is_periodic,
    is_symmetric,
    level_of,
    quantity_of,
    standard_pressure,
)
from hasten.recipes.datacube.synth import GAS_CONSTANT, GRAVITY, STANDARD_NAMES, UNITS, DrawnCube

CLIMATE = PUBLIC_DATA / "climate"
CUBE = DrawnCube(num_levels=3, num_latitudes=12, num_longitudes=16)
GRID = Grid(tuple(CUBE.axes["latitude"].tolist()), tuple(CUBE.axes["longitude"].tolist()))
CHANNELS = tuple(
    Channel(variable=name, standard_name=STANDARD_NAMES[name], units=UNITS[name], level=height, level_units="m")
    for name in UNITS
    for height in CUBE.axes["height"].tolist()
)
PRESSURES = (1000.0, 850.0, 500.0)


def steps(first: int, count: int = 1) -> torch.Tensor:
    """Return `[1, time, channel, latitude, longitude]` of the cube."""
    drawn = [np.concatenate(list(CUBE.at(time).values())) for time in range(first, first + count)]
    return torch.from_numpy(np.stack(drawn))[None]


def disturbed(seed: int = 0) -> torch.Tensor:
    truth = steps(1, 2)
    spread = steps(0, 8).std((0, 1, 3, 4))[:, None, None]
    return truth + 0.1 * spread * (1 + torch.randn(truth.shape, generator=torch.Generator().manual_seed(seed)))


def on_levels(names: str, units: Sequence[str], levels: Sequence[float] = PRESSURES) -> tuple[Channel, ...]:
    return tuple(
        Channel(variable=name, standard_name="", units=unit, level=level, level_units="hPa")
        for name, unit in zip(names.split(), units, strict=True)
        for level in levels
    )


def terms(constraints: Constraints, forecast: torch.Tensor, last: torch.Tensor) -> dict[str, float]:
    return {name: float(term) for name, term in constraints(forecast, last)[1].items()}


def test_a_balanced_atmosphere_breaks_no_law() -> None:
    found = terms(Constraints(CHANNELS, GRID), steps(0), steps(0)[:, 0])
    assert found["hydrostatic"] < 1e-6
    assert {name: value for name, value in found.items() if name != "hydrostatic"} == {
        "energy": 0.0, "mass": 0.0, "humidity": 0.0, "spectral": 0.0
    }  # fmt: skip
    assert terms(Constraints(CHANNELS, GRID), steps(3), steps(0)[:, 0])["energy"] < 1e-3


def test_values_equal_those_of_five_separate_modules() -> None:
    five = {name: form(CUBE.axes["height"].tolist(), GRID.latitude) for name, form in FIVE.items()}
    forecast, last = disturbed(), steps(0)[:, 0]
    forecast[:, :, 6:9] -= 0.01  # humidity below zero
    whole = {name: float(form(forecast.double(), last.double())) for name, form in five.items()}
    found = terms(Constraints(CHANNELS, GRID), forecast, last)
    assert all(value > 0 for value in whole.values())
    assert found == pytest.approx(whole, rel=1e-5)
    given = forecast.double().requires_grad_()
    usual = torch.stack([form(given, last.double()) for form in five.values()]).sum()
    total, _ = Constraints(CHANNELS, GRID).double()(given, last.double())
    slopes = [torch.autograd.grad(value, given)[0] for value in (usual, total)]
    scale = slopes[0].abs().amax((0, 1, 3, 4))[:, None, None]
    torch.testing.assert_close(slopes[1] / scale, slopes[0] / scale, rtol=0, atol=1e-6)


@pytest.mark.parametrize("columns", [6, 9])
def test_the_gradient_is_that_of_finite_differences(columns: int) -> None:
    constraints = Constraints(CHANNELS, Grid.regular(4, columns), learned=True).double()
    fields = steps(0, 3)[..., :4, :columns].double()
    spread = fields.std((0, 1, 3, 4))[:, None, None] + 1e-9
    middle, last = fields[:, 1:], fields[:, 0]
    start = torch.randn(middle.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()

    def total(given: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = constraints(middle + 0.1 * given * spread, last)[0]
        return found

    assert torch.autograd.gradcheck(total, (start,), eps=1e-6, atol=1e-4)


def test_energy_mass_and_hydrostatic_balance_of_known_changes() -> None:
    last = steps(0)[:, 0]
    constraints = Constraints(CHANNELS, GRID, scales=Scales(energy_j_kg=HEAT_CAPACITY, mass_pa=50.0))
    warm, heavy, windy, stretched = (last[:, None].clone() for _ in range(4))
    warm[:, :, 0:3] += 2.0
    assert terms(constraints, warm, last)["energy"] == pytest.approx(4.0, rel=1e-4)
    heavy[:, :, 3] += 100.0
    assert terms(constraints, heavy, last)["mass"] == pytest.approx(4.0, rel=1e-4)
    windy[:, :, 9:12] += 30.0
    mean_wind = float((last[:, 9:12].mean(-1) * torch.from_numpy(cell_areas(GRID)).float()).sum(-1) @ mass_of_heights())
    kinetic = (30.0 * mean_wind + 450.0) / HEAT_CAPACITY
    assert terms(constraints, windy, last)["energy"] == pytest.approx(kinetic**2, rel=1e-3)
    stretched[:, :, 0:3] += 1.0  # layers one kelvin too warm for their thickness
    seen = terms(constraints, stretched, last)["hydrostatic"]
    actual = np.diff(np.log(last[0, 3:6].numpy()), axis=0)
    standard = np.diff(np.log([standard_pressure(channel) for channel in CHANNELS[3:6]]))[:, None, None]
    moist = 1 + 0.608 * (last[0, 6:8] + last[0, 7:9]).numpy() / 2
    assert seen == pytest.approx(float(np.mean((moist * actual / standard) ** 2)), rel=1e-3)


def mass_of_heights() -> torch.Tensor:
    pressure = np.array([standard_pressure(channel) for channel in CHANNELS[:3]])
    edges = np.array([pressure[0], *(pressure[1:] + pressure[:-1]) / 2, pressure[-1]])
    return torch.from_numpy(np.diff(edges) / (pressure[-1] - pressure[0])).float()


def test_thickness_between_pressure_levels_gives_the_temperature() -> None:
    channels = on_levels("t z q", ["degC", "gpm", "g/kg"])
    temperature = torch.tensor([290.0, 280.0, 255.0])
    virtual = (temperature[1:] + temperature[:-1]) / 2
    layers = GAS_CONSTANT * virtual * torch.tensor([math.log(1000 / 850), math.log(850 / 500)])
    height = torch.cat([torch.zeros(1), layers.cumsum(0)]) / GRAVITY
    fields = torch.cat([temperature - 273.15, height, torch.zeros(3)])[None, :, None, None].expand(1, 9, 4, 8)
    constraints = Constraints(channels, Grid.regular(4, 8))
    assert constraints.refused == {"mass": "it needs the pressure at the surface or at heights"}
    assert terms(constraints, fields[:, None], fields)["hydrostatic"] < 1e-6
    moved = fields[:, None].clone()
    moved[:, :, 5] += 10.0  # the upper layer is 10 m thicker
    warmer = 10.0 * GRAVITY / GAS_CONSTANT / math.log(850 / 500)
    assert terms(constraints, moved, fields)["hydrostatic"] == pytest.approx(warmer**2 / 2, rel=1e-3)
    back = [5, 4, 3, 2, 1, 0, 8, 7, 6]  # the order of levels and variables changes nothing
    mixed = [3, 0, 6, 4, 1, 7, 5, 2, 8]
    expected = pytest.approx(terms(constraints, moved, fields), rel=1e-4)
    for order in (back, mixed):
        other = Constraints([channels[place] for place in order], Grid.regular(4, 8))
        assert terms(other, moved[:, :, order], fields[:, order]) == expected


def test_energy_from_thickness_equals_energy_from_temperature() -> None:
    thickness = Constraints(on_levels("z", ["m2 s-2"]), Grid.regular(4, 8), scales=Scales(energy_j_kg=HEAT_CAPACITY))
    last = torch.tensor([0.0, 14_000.0, 55_000.0])[None, :, None, None].expand(1, 3, 4, 8)
    warmer = last[:, None].clone()
    warmer[:, :, 1] += GAS_CONSTANT * 3.0 * math.log(1000 / 850)
    warmer[:, :, 2] += GAS_CONSTANT * 3.0 * math.log(1000 / 500)
    assert terms(thickness, warmer, last)["energy"] == pytest.approx(9.0, rel=1e-3)
    assert set(thickness.refused) == {"mass", "hydrostatic", "humidity"}


def test_humidity_is_judged_in_its_units() -> None:
    fields = torch.zeros(1, 1, 2, 4, 8)
    fields[:, :, 0], fields[:, :, 1] = -1.0, 130.0
    channels = (on_levels("q", ["g/kg"], [850.0])[0], on_levels("r", ["%"], [850.0])[0])
    constraints = Constraints(channels, Grid.regular(4, 8), weights={"humidity": 1.0})
    expected = ((0.001 / 0.0005) ** 2 + (0.1 / 0.012) ** 2) / 2
    assert terms(constraints, fields, fields[:, 0])["humidity"] == pytest.approx(expected, rel=1e-4)


def test_a_blurred_forecast_loses_power_in_short_waves() -> None:
    constraints = Constraints(CHANNELS, GRID, weights={"spectral": 1.0})
    last = steps(0)[:, 0]
    noise = torch.randn(last.shape, generator=torch.Generator().manual_seed(0))
    last = last + 0.1 * (last - last.mean(-1, keepdim=True)).std((0, 2, 3), keepdim=True) * noise
    blurred, found = last.clone(), [0.0]
    for _ in range(3):
        blurred = (blurred.roll(1, -1) + 2 * blurred + blurred.roll(-1, -1)) / 4
        found.append(terms(constraints, blurred[:, None], last)["spectral"])
    assert found == sorted(found)
    assert found[1] > 0.1
    assert terms(constraints, last.roll(3, -1)[:, None], last)["spectral"] < 1e-4
    doubled = last[:, None] * 2 - last.mean(-1, keepdim=True)[:, None]
    assert terms(constraints, doubled, last)["spectral"] == pytest.approx(math.log(4) ** 2, rel=1e-2)


def test_fixed_weights_add_up_and_zero_leaves_one_out() -> None:
    constraints = Constraints(CHANNELS, GRID, weights={"energy": 2.0, "mass": 0.0, "spectral": 0.5})
    total, found = constraints(disturbed(), steps(0)[:, 0])
    assert list(found) == ["energy", "spectral"]
    assert float(total) == pytest.approx(2 * float(found["energy"]) + 0.5 * float(found["spectral"]))
    assert not any(parameter.requires_grad for parameter in constraints.parameters())


def test_learned_weights_stay_positive_and_reach_their_stated_values() -> None:
    constraints = Constraints(CHANNELS, GRID, weights={"mass": 1.0, "energy": 2.0}, learned=True)
    forecast, last = disturbed(), steps(0)[:, 0]
    forecast[:, :, 3] += 500.0
    optimizer = torch.optim.Adam(constraints.parameters(), lr=0.1)
    for _ in range(300):
        optimizer.zero_grad()
        constraints(forecast, last)[0].backward()
        optimizer.step()
    found = terms(constraints, forecast, last)
    assert constraints.weights == pytest.approx(
        {"energy": 2 / (found["energy"] + 0.01), "mass": 1 / (found["mass"] + 0.01)}, rel=1e-2
    )
    again = Constraints(CHANNELS, GRID, weights={"mass": 1.0, "energy": 2.0}, learned=True)
    again.load_state_dict(constraints.state_dict())
    assert again.weights == constraints.weights


def test_it_computes_in_float32_under_autocast_and_counts_missing_values_as_unchanged() -> None:
    constraints, last = Constraints(CHANNELS, GRID), steps(0)[:, 0]
    plain = constraints(disturbed(), last)[0]
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(constraints(disturbed(), last)[0], plain)
    hole = last.clone()
    hole[0, :, 2, 3] = torch.nan
    assert terms(constraints, last[:, None], hole) == pytest.approx(terms(constraints, last[:, None], last), abs=1e-6)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"energy": -1.0}, "'energy': -1.0"),
        ({"momentum": 1.0}, "one of energy, mass, hydrostatic, humidity, spectral; not 'momentum'"),
        ({"hydrostatic": 1.0}, "'hydrostatic' is not possible here: it needs temperature"),
        ({"mass": math.inf}, "'mass': inf"),
    ],
)
def test_wrong_weights_are_named(weights: dict[str, float], message: str) -> None:
    with pytest.raises(JobError, match=message):
        Constraints(on_levels("t", ["K"]), GRID, weights=weights)


def test_fields_of_another_shape_are_named() -> None:
    constraints = Constraints(CHANNELS, GRID)
    with pytest.raises(JobError, match=r"\[batch, lead, 15, 12, 16\].*not \[1, 1, 14, 12, 16\] and \[1, 15, 12, 16\]"):
        constraints(steps(0)[:, :, :14], steps(0)[:, 0])
    with pytest.raises(JobError, match=r"and \[2, 15, 12, 16\]"):
        constraints(steps(0), steps(0, 2)[0])


def test_a_region_allows_only_local_constraints() -> None:
    part = Grid((60.0, 50.0, 40.0), (0.0, 10.0, 20.0, 30.0))
    constraints = Constraints(CHANNELS, part)
    assert constraints.active == ["hydrostatic", "humidity"]
    assert constraints.refused["energy"] == "the grid does not cover the globe"
    assert "equally spaced" in constraints.refused["spectral"]
    with pytest.raises(JobError, match="'energy' is not possible here: the grid does not cover the globe"):
        Constraints(CHANNELS, part, weights={"energy": 1.0})


def test_units_must_be_known_and_equal_within_a_quantity() -> None:
    with pytest.raises(DataError, match=r"'z' .geopotential. has the units 'acre'"):
        Constraints(on_levels("z", ["acre"]), GRID)
    mixed = (*on_levels("q", ["g/kg"], [850.0]), *on_levels("q", ["kg/kg"], [500.0]))
    with pytest.raises(JobError, match="same units, unlike 'q'"):
        Constraints(mixed, GRID)


@pytest.mark.parametrize("units", ["m/s", "m s-1", "m s**-1", "m.s^-1", " M S-1 "])
def test_units_may_be_spelled_as_files_do(units: str) -> None:
    assert quantity_of(on_levels("u", [units])[0]).factor == 1.0


@pytest.mark.parametrize(
    ("name", "units", "expected"),
    [
        ("t", "degC", (1.0, 273.15)),
        ("t", "degrees C", (1.0, 273.15)),
        ("sp", "millibars", (100.0, 0.0)),
        ("r", "%", (0.01, 0.0)),
    ],
)
def test_units_convert_to_si(name: str, units: str, expected: tuple[float, float]) -> None:
    quantity = quantity_of(on_levels(name, [units])[0])
    assert (quantity.factor, quantity.offset) == expected


def test_anything_else_is_left_as_it_is() -> None:
    ozone = Channel(variable="o3", standard_name="mass_fraction_of_ozone_in_air", units="", level=None, level_units="")
    assert quantity_of(ozone).name == ""
    assert level_of(ozone) is None


def test_levels_are_pressures_or_heights() -> None:
    def level(value: float, units: str) -> Channel:
        return Channel(variable="t", standard_name="", units="K", level=value, level_units=units)

    assert level_of(level(850.0, "millibars")) == ("pressure", 85_000.0)
    assert level_of(level(2.0, "km")) == ("height", 2000.0)
    assert level_of(level(137.0, "")) is None
    found = [standard_pressure(level(height, "m")) for height in (0.0, 5000.0, 11_000.0, 20_000.0)]
    assert found == pytest.approx([101_325.0, 54_020.0, 22_632.0, 5475.0], rel=1e-3)


def test_areas_and_kinds_of_grids() -> None:
    grid = Grid.regular(180, 360)
    latitude = np.deg2rad(grid.latitude)
    assert cell_areas(grid) == pytest.approx(np.cos(latitude) / np.cos(latitude).sum(), rel=1e-4)
    poles = Grid(tuple(np.linspace(90, -90, 19).tolist()), tuple(range(0, 360, 10)))
    assert cell_areas(poles).sum() == pytest.approx(1.0)
    assert cell_areas(poles)[0] == pytest.approx((1 - math.sin(math.radians(85))) / 2)
    for one in (grid, poles):
        assert (is_global(one), is_periodic(one), is_symmetric(one)) == (True, True, True)
    tropics = Grid((20.0, 0.0, -20.0), tuple(range(0, 360, 10)))
    assert (is_global(tropics), is_periodic(tropics), is_symmetric(tropics)) == (False, True, True)
    assert not is_periodic(Grid((0.0,), (0.0, 10.0)))


def test_reanalysis_agrees_with_the_laws() -> None:
    if not CLIMATE.exists():
        pytest.skip(NOT_THERE)
    cube = open_cube([CLIMATE / "eraint_uvz.nc"])
    axes: dict[str, Any] = {axis.role: axis.values.tolist() for axis in cube.variables["z"].axes}
    grid, channels = Grid(tuple(axes["latitude"]), tuple(axes["longitude"])), channels_of(cube)
    january, july = torch.from_numpy(np.concatenate([cube.read(name, 0, 2) for name in ("z", "u", "v")], axis=1))[:, None]
    constraints = Constraints(channels, grid, scales=Scales(energy_j_kg=HEAT_CAPACITY))
    assert constraints.active == ["energy", "spectral"]
    seasons = terms(constraints, july[None], january)
    assert 1.0 < math.sqrt(seasons["energy"]) < 4.0  # kelvins: the globe is warmer in July, by its land in the north
    assert 0 < seasons["spectral"] < 10
    assert terms(constraints, january[None], january) == {"energy": 0.0, "spectral": 0.0}
    z = january[0, :3].double().mean((1, 2))  # 200, 500 and 850 hPa
    layers = (z[:-1] - z[1:]) / GAS_CONSTANT / torch.tensor([math.log(500 / 200), math.log(850 / 500)])
    assert 220 < float(layers[0]) < 250 < float(layers[1]) < 285  # mean temperature of the layers in K
    temperature = torch.stack([layers[0], layers[0], 2 * layers[1] - layers[0]])
    whole = torch.cat([temperature, z])[None, :, None, None].expand(1, 6, *grid.shape).float()
    warm = on_levels("t", ["K"], (200.0, 500.0, 850.0))
    balanced = Constraints((*warm, *channels[:3]), grid, weights={"hydrostatic": 1.0})
    assert terms(balanced, whole[:, None], whole)["hydrostatic"] < 1e-4
