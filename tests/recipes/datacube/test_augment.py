"""Augmentation: each transform, its distribution, and the fused kernel against the plain torch form."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch.utils.data import DataLoader

from hasten.core.errors import DataError, JobError
from hasten.data.cube.channels import Channel
from hasten.data.cube.regrid import Grid
from hasten.recipes.datacube.augment import Augmentation, Augmenter, key, normals, philox
from hasten.recipes.datacube.augment_kernel import augment

MEAN, STD = [280.0, 900.0, 0.01, 3.0, 1.0], [10.0, 50.0, 0.005, 10.0, 8.0]
GRID = Grid.regular(6, 9)
ALL = Augmentation(
    temperature_noise=0.5, pressure_noise=40.0, humidity_noise=0.01, flip_frac=0.5, rotate_degrees=180.0, shift_steps=2,
    smooth_steps=0.7, scale_frac=0.2, noise_steps=3,
)  # fmt: skip


def channel(variable: str, standard_name: str, units: str) -> Channel:
    return Channel(variable=variable, standard_name=standard_name, units=units, level=None, level_units="")


CHANNELS = (
    channel("t", "air_temperature", "degC"),
    channel("sp", "surface_air_pressure", "hPa"),
    channel("q", "specific_humidity", "kg kg**-1"),
    channel("u", "eastward_wind", "m s-1"),
    channel("v", "northward_wind", "m/s"),
)


def windows(batch: int = 4, steps: int = 6, grid: Grid = GRID) -> torch.Tensor:
    drawn = torch.randn(batch, steps, 5, *grid.shape, generator=torch.Generator().manual_seed(0))
    fields = drawn * torch.tensor(STD)[:, None, None] + torch.tensor(MEAN)[:, None, None]
    fields[:, :, 2].clamp_(0.0, 0.05)
    return fields


def made(grid: Grid = GRID, **settings: Any) -> Augmenter:
    return Augmenter(Augmentation(**settings), CHANNELS, grid, mean=MEAN, std=STD)


def keys(count: int, epoch: int = 0) -> list[int]:
    return [key(7, epoch, index) for index in range(count)]


@pytest.mark.parametrize(
    ("counter", "words", "expected"),
    [
        (0, (0, 0), (0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48)),
        (0xFFFFFFFF, (0xFFFFFFFF, 0xFFFFFFFF), None),
    ],
)
def test_generator_gives_the_published_numbers(
    counter: int, words: tuple[int, int], expected: tuple[int, ...] | None
) -> None:
    """The first is from the authors' file of known answers; Python's integers say what the second is."""
    start = torch.tensor([counter])
    found = tuple(int(word) for word in philox(torch.tensor(words[0]), torch.tensor(words[1]), start, counter, counter))
    assert found == (expected or whole_integers(counter, words))


def whole_integers(counter: int, words: tuple[int, int]) -> tuple[int, ...]:
    low, (a, b, c, d), (k0, k1) = 0xFFFFFFFF, (counter, counter, 0, counter), words
    for _ in range(7):
        first, second = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (second >> 32) ^ b ^ k0, second & low, (first >> 32) ^ d ^ k1, first & low
        k0, k1 = (k0 + 0x9E3779B9) & low, (k1 + 0xBB67AE85) & low
    return a, b, c, d


def test_noise_is_normally_distributed_and_independent() -> None:
    words = torch.tensor([[1, 2], [3, 4]])
    drawn = normals(words, torch.arange(8), (180, 360)).double().flatten(2).numpy()
    values = drawn.ravel()
    error = 1 / math.sqrt(values.size)
    assert abs(values.mean()) < 4 * error
    assert abs(values.var() - 1) < 4 * math.sqrt(2) * error
    assert abs(stats.skew(values)) < 4 * math.sqrt(6) * error
    assert abs(stats.kurtosis(values)) < 4 * math.sqrt(24) * error
    assert stats.kstest(values, "norm").pvalue > 1e-3
    assert 4.5 < np.abs(values).max() < 6.8
    together = np.corrcoef(drawn.reshape(16, -1)) - np.eye(16)
    assert np.abs(together).max() < 5 / math.sqrt(180 * 360)
    assert all(abs(np.corrcoef(values[:-lag], values[lag:])[0, 1]) < 4 * error for lag in (1, 2, 360, 180 * 90))


@pytest.mark.parametrize("grid", [GRID, Grid.regular(5, 7), Grid.regular(2, 2), Grid.regular(32, 64)])
@pytest.mark.parametrize(
    "settings",
    [
        Augmentation(),
        ALL,
        Augmentation(temperature_noise=2.0),
        Augmentation(rotate_degrees=180.0, flip_frac=1.0),
        Augmentation(smooth_steps=4.0, shift_steps=1),
        Augmentation(noise_units="normalised", pressure_noise=0.3, humidity_noise=3.0),
    ],
)
def test_kernel_equals_the_torch_form(settings: Augmentation, grid: Grid) -> None:
    augmenter, given = Augmenter(settings, CHANNELS, grid, mean=MEAN, std=STD), windows(grid=grid)
    given[1, 2, 0, 0, 0] = torch.nan
    before = given.clone()
    scale = torch.tensor(STD)[:, None, None]
    slow, fast = augmenter(given, keys(4)), augment(augmenter, given, keys(4))
    assert torch.equal(given.isnan(), before.isnan())
    assert torch.equal(given.nan_to_num(), before.nan_to_num())  # unchanged
    assert slow.isnan().any()
    torch.testing.assert_close(fast / scale, slow / scale, rtol=2e-6, atol=2e-6, equal_nan=True)


def test_nothing_happens_by_default() -> None:
    given = windows()
    assert torch.equal(made()(given, keys(4)), given)
    assert torch.equal(augment(made(), given, keys(4)), given)


def test_numbers_do_not_depend_on_the_batch_its_order_or_the_threads() -> None:
    augmenter, given = Augmenter(ALL, CHANNELS, GRID, mean=MEAN), windows(8)
    whole = augment(augmenter, given, keys(8))
    assert torch.equal(augment(augmenter, given, keys(8), num_threads=3), whole)
    assert torch.equal(augment(augmenter, given.flip(0), keys(8)[::-1]), whole.flip(0))
    assert torch.equal(augment(augmenter, [given[5]], keys(8)[5:6]), whole[5:6])
    assert not torch.equal(augment(augmenter, given, keys(8, epoch=1)), whole)


class Windows(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return augment(Augmenter(ALL, CHANNELS, GRID, mean=MEAN), [windows(8)[index]], keys(8)[index : index + 1])[0]


@pytest.mark.slow
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_numbers_do_not_depend_on_the_workers(start: str) -> None:
    whole = augment(Augmenter(ALL, CHANNELS, GRID, mean=MEAN), windows(8), keys(8), num_threads=2)
    loader = DataLoader(Windows(), batch_size=4, num_workers=2, multiprocessing_context=start)
    assert torch.equal(torch.cat(list(loader)), whole)


def test_windows_may_be_views_of_a_longer_record() -> None:
    record = windows(1, 20)[0]
    augmenter = made(temperature_noise=1.0, rotate_degrees=90.0)
    views = [record[start : start + 6] for start in (0, 3, 14)]
    assert torch.equal(augment(augmenter, views, keys(3)), augment(augmenter, torch.stack(views), keys(3)))
    across = windows(1, 6)[0].transpose(0, 1).contiguous().transpose(0, 1)
    assert torch.equal(augment(augmenter, [across], keys(1)), augment(augmenter, [across.contiguous()], keys(1)))


def test_a_shift_in_time_never_wraps_and_each_start_is_as_likely() -> None:
    given = torch.zeros(3000, 6, 5, 2, 2)
    given += torch.arange(6.0)[:, None, None, None]
    out = made(Grid.regular(2, 2), shift_steps=2)(given, keys(3000))
    assert out.shape[1] == 4
    steps = out[:, :, 3, 0, 0]
    assert (steps.diff(dim=1) == 1).all()
    counts = np.bincount(steps[:, 0].int().numpy(), minlength=3)
    assert counts.size == 3
    assert stats.chisquare(counts).pvalue > 1e-3


def test_a_rotation_moves_whole_columns_within_its_angle_and_each_is_as_likely() -> None:
    grid = Grid.regular(2, 36)
    given = torch.arange(36.0).expand(3000, 1, 5, 2, 36)
    out = made(grid, rotate_degrees=45.0)(given, keys(3000))[:, 0, 3, 0]
    assert (out.sort().values == torch.arange(36.0)).all()
    east = (-out[:, 0]) % 36
    east = torch.where(east > 18, east - 36, east).int()
    counts = np.bincount(east.numpy() + 4, minlength=9)
    assert counts.size == 9
    assert stats.chisquare(counts).pvalue > 1e-3


def test_a_mirror_image_negates_the_northward_wind_alone() -> None:
    given = windows(2000, 1, Grid.regular(2, 2))
    out = made(Grid.regular(2, 2), flip_frac=0.3)(given, keys(2000))
    flipped = (out[:, 0, 3] != given[:, 0, 3]).flatten(1).any(1)
    assert stats.binomtest(int(flipped.sum()), 2000, 0.3).pvalue > 1e-3
    assert torch.equal(out[~flipped], given[~flipped])
    sign = torch.tensor([1.0, 1, 1, 1, -1])[:, None, None]
    assert torch.equal(out[flipped], given[flipped].flip(-2) * sign)


def test_vorticity_changes_sign_as_well() -> None:
    curl = channel("vo", "atmosphere_relative_vorticity", "s-1")
    augmenter = Augmenter(Augmentation(flip_frac=1.0), [curl], GRID)
    given = windows()[:, :, :1]
    assert torch.equal(augmenter(given, keys(4)), -given.flip(-2))


def test_scaling_keeps_the_mean_and_multiplies_deviations_by_one_factor() -> None:
    given = windows(500, 1)
    mean = torch.tensor(MEAN)[:, None, None]
    out = made(scale_frac=0.2)(given, keys(500))
    factors = ((out - mean) / (given - mean))[:, 0, [0, 1, 3, 4]].flatten(1).median(1).values
    torch.testing.assert_close(out[:, :, 3:] - mean[3:], factors[:, None, None, None, None] * (given - mean)[:, :, 3:])
    assert factors.min() > 0.8
    assert factors.max() < 1.2
    assert stats.kstest(factors.numpy(), "uniform", (0.8, 0.4)).pvalue > 1e-3


def test_smoothing_keeps_constants_and_the_middle_of_a_trend_and_never_wraps() -> None:
    augmenter = made(smooth_steps=1.5)
    assert torch.allclose(augmenter(torch.full((4, 6, 5, 6, 9), 0.02), keys(4)), torch.tensor(0.02))
    given = torch.zeros(4, 30, 5, 6, 9)
    given[:, :, 3] = torch.arange(30.0)[:, None, None]
    out = augmenter(given, keys(4))[:, :, 3]
    torch.testing.assert_close(out[:, 5:-5], given[:, 5:-5, 3])
    assert (out[:, 0] < 3).all()  # the last step, 29, has no part in it
    noisy = augmenter(windows(200, 20), keys(200))[:, 9:11, 3].var(dim=(1, 2, 3)) / STD[3] ** 2
    expected = (augmenter.draw(keys(200), 20).taps[:, 9] ** 2).sum(-1)
    assert float(noisy.mean() / expected.mean()) == pytest.approx(1, abs=0.05)
    assert expected.min() < 0.2
    assert np.corrcoef(noisy, expected)[0, 1] > 0.9


@pytest.mark.parametrize(
    ("settings", "number", "sigma"),
    [
        ({"temperature_noise": 0.5}, 0, 0.5),
        ({"pressure_noise": 40.0}, 1, 0.4),  # hPa in the file
        ({"humidity_noise": 1e-4}, 2, 1e-4),
        ({"pressure_noise": 0.3, "noise_units": "normalised"}, 1, 15.0),
    ],
)
def test_noise_has_its_stated_strength_in_its_quantity_alone(settings: dict[str, Any], number: int, sigma: float) -> None:
    grid = Grid.regular(60, 90)
    given = torch.zeros(3, 4, 5, *grid.shape) + torch.tensor(MEAN)[:, None, None]
    change = (made(grid, **settings)(given, keys(3)) - given).double()
    assert change[:, :, [other for other in range(5) if other != number]].abs().max() == 0
    values = change[:, :, number].flatten()
    error = sigma / math.sqrt(values.numel())
    assert abs(values.mean()) < 4 * error
    assert abs(values.std() - sigma) < 4 * error
    assert abs(torch.corrcoef(change[:, :, number].flatten(2).flatten(0, 1)) - torch.eye(12)).max() < 5 / math.sqrt(5400)


def test_noise_is_added_to_the_leading_steps_alone_if_so_asked() -> None:
    given = windows()
    changed = (made(temperature_noise=1.0, noise_steps=4)(given, keys(4)) != given)[:, :, 0].flatten(2).any(2)
    assert changed.tolist() == [[True] * 4 + [False] * 2] * 4


def test_humidity_stays_within_its_bounds_after_all_else() -> None:
    strong = made(humidity_noise=0.1, scale_frac=0.9, smooth_steps=0.5, flip_frac=0.5)
    for out in (strong(windows(), keys(4)), augment(strong, windows(), keys(4))):
        assert float(out[:, :, 2].min()) == 0.0
        assert float(out[:, :, 2].max()) == pytest.approx(0.05)
    percent = Augmenter(Augmentation(), [channel("rh", "relative_humidity", "%")], GRID)
    assert float(percent(200 * torch.ones(1, 1, 1, 6, 9), [1]).max()) == 120.0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"flip_frac": 2}, "flip_frac must be from 0 to 1.0, not 2"),
        ({"temperature_noise": -1.0}, "temperature_noise must be from 0"),
        ({"temperature_noise": math.nan}, "not nan"),
        ({"noise_units": "kelvin"}, "'physical' or 'normalised', not 'kelvin'"),
        ({"relative_humidity_noise": 0.1}, "relative_humidity needs such a channel"),
    ],
)
def test_wrong_settings_are_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(JobError, match=message):
        made(**given)


def test_grids_and_statistics_that_do_not_allow_a_setting_are_named() -> None:
    part = Grid((60.0, 50.0, 40.0), (0.0, 10.0, 20.0))
    with pytest.raises(JobError, match="whole globe"):
        made(part, rotate_degrees=10.0)
    with pytest.raises(JobError, match="symmetric about the equator"):
        made(part, flip_frac=0.5)
    with pytest.raises(JobError, match="mean of each channel"):
        Augmenter(Augmentation(scale_frac=0.1), CHANNELS, GRID)
    with pytest.raises(JobError, match="standard deviation"):
        Augmenter(Augmentation(temperature_noise=0.1, noise_units="normalised"), CHANNELS, GRID)


@pytest.mark.parametrize("way", [lambda augmenter, *given: augmenter(*given), augment])
def test_wrong_windows_are_named(way: Any) -> None:
    with pytest.raises(JobError, match=r"\[3 or more, 5, 6, 9\].*not torch.float32 \[2, 5, 6, 9\]"):
        way(made(shift_steps=2), windows(steps=2), keys(4))
    with pytest.raises(JobError, match=r"not torch.float32 \[6, 4, 6, 9\]"):
        way(made(), windows()[:, :, :4], keys(4))
    with pytest.raises(JobError, match=r"not torch.float64"):
        way(made(), windows().double(), keys(4))
    with pytest.raises(JobError, match="4 windows and 3 keys"):
        way(made(), windows(), keys(3))


@pytest.mark.parametrize(("units", "message"), [("", "has no units"), ("furlong", "has the units 'furlong'")])
def test_wrong_and_missing_units_are_named(units: str, message: str) -> None:
    with pytest.raises(DataError, match=f"'t' .temperature. {message}"):
        Augmenter(Augmentation(), [channel("t", "air_temperature", units)], GRID)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here")
def test_a_gpu_gives_the_same() -> None:
    augmenter, given = Augmenter(ALL, CHANNELS, GRID, mean=MEAN), windows()
    scale = torch.tensor(STD)[:, None, None]
    torch.testing.assert_close(
        augmenter(given.cuda(), keys(4)).cpu() / scale, augmenter(given, keys(4)) / scale, rtol=0, atol=1e-5
    )
