"""Batches, augmentation and physical constraints as they are usually written: the baseline for measuring gains.

Each sample stacks its variables, moves the axes, and adds noise in double precision. Augmentation makes a new tensor with
each change. Each constraint is a module of its own, which loops over leads and levels, and computes areas and spectra again.
Inputs, settings and results are those of `hasten.recipes.datacube`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from hasten.recipes.datacube.augment import Augmentation

VARIABLES = ("temperature", "pressure", "humidity", "u", "v")
GRAVITY, GAS_CONSTANT, HEAT_CAPACITY, LATENT_HEAT = 9.80665, 287.05, 1004.6, 2.501e6


def naive_batch(
    variables: Mapping[str, npt.NDArray[np.float32]], starts: Sequence[int], steps: int, settings: Augmentation
) -> torch.Tensor:
    """Return windows with noise, float32 `[batch, time, channel, latitude, longitude]`.

    Args:
        variables: The whole data, each `[time, level, latitude, longitude]`.
        starts: First time step of each window.
        steps: Time steps of a window.
        settings: Strengths of the noise; nothing else is used.
    """
    sigmas = {
        "temperature": settings.temperature_noise,
        "pressure": settings.pressure_noise,
        "humidity": settings.humidity_noise,
    }
    samples = []
    for start in starts:
        window = np.stack([variables[name][start : start + steps] for name in VARIABLES])
        window = window.transpose(1, 0, 2, 3, 4).astype(np.float64)
        for number, name in enumerate(VARIABLES):
            if name in sigmas:
                window[:, number] += np.random.normal(0.0, sigmas[name], window[:, number].shape)  # noqa: NPY002  as usual
        window[:, 2] = np.clip(window[:, 2], 0.0, 0.05)
        samples.append(window.reshape(steps, -1, *window.shape[-2:]))
    return torch.from_numpy(np.stack(samples)).float()


class NaiveAugmentation:
    """Augment one sample after the other; each change makes new tensors.

    Args:
        settings: Kinds and strengths.
        levels: Levels of each of the five variables.
        mean: Mean of each channel.
    """

    def __init__(self, settings: Augmentation, levels: int, mean: Sequence[float]) -> None:
        self.settings, self.levels = settings, levels
        self.mean = torch.tensor(mean)[:, None, None]

    def __call__(self, fields: torch.Tensor) -> torch.Tensor:
        """Return an augmented copy of `[batch, time + shift_steps, channel, latitude, longitude]`."""
        return torch.stack([self._one(sample) for sample in fields])

    def _one(self, sample: torch.Tensor) -> torch.Tensor:
        settings = self.settings
        shift = int(torch.randint(settings.shift_steps + 1, ()))
        sample = sample[shift : shift + len(sample) - settings.shift_steps]
        if settings.smooth_steps:
            sample = self._smoothed(sample, settings.smooth_steps * float(torch.rand(())))
        if settings.rotate_degrees:
            columns = int(settings.rotate_degrees / 360 * sample.shape[-1])
            sample = torch.roll(sample, int(torch.randint(-columns, columns + 1, ())), dims=-1)
        parts = dict(zip(VARIABLES, sample.split(self.levels, dim=1), strict=True))
        if torch.rand(()) < settings.flip_frac:
            parts = {name: torch.flip(part, dims=[-2]) for name, part in parts.items()}
            parts["v"] = -parts["v"]
        if settings.scale_frac:
            factor = 1 + settings.scale_frac * (2 * torch.rand(()) - 1)
            means = dict(zip(VARIABLES, self.mean.split(self.levels), strict=True))
            parts = {name: means[name] + factor * (part - means[name]) for name, part in parts.items()}
        parts["temperature"] = parts["temperature"] + settings.temperature_noise * torch.randn_like(parts["temperature"])
        parts["pressure"] = parts["pressure"] + settings.pressure_noise * torch.randn_like(parts["pressure"])
        parts["humidity"] = parts["humidity"] + settings.humidity_noise * torch.randn_like(parts["humidity"])
        parts["humidity"] = torch.clamp(parts["humidity"], 0.0, 0.05)
        return torch.cat([parts[name] for name in VARIABLES], dim=1)

    @staticmethod
    def _smoothed(sample: torch.Tensor, sigma: float) -> torch.Tensor:
        reach = 1 if sigma == 0 else math.ceil(3 * sigma)
        smoothed = []
        for step in range(len(sample)):
            near = range(max(0, step - reach), min(len(sample), step + reach + 1))
            weights = torch.tensor([math.exp(-0.5 * ((other - step) / max(sigma, 1e-3)) ** 2) for other in near])
            weights = weights / weights.sum()
            smoothed.append(sum(weight * sample[other] for weight, other in zip(weights, near, strict=True)))
        return torch.stack(smoothed)


class _Constraint(nn.Module):
    """A constraint on `[batch, lead, channel, latitude, longitude]`: five variables, each on all heights.

    Args:
        heights: Heights of the levels in m, ascending.
        latitude: In degrees.
    """

    def __init__(self, heights: Sequence[float], latitude: Sequence[float]) -> None:
        super().__init__()
        self.heights, self.latitude = list(heights), list(latitude)

    def split(self, fields: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return each variable `[..., level, latitude, longitude]`."""
        return dict(zip(VARIABLES, fields.split(len(self.heights), dim=-3), strict=True))

    def areas(self, fields: torch.Tensor) -> torch.Tensor:
        """Return the weight of each latitude `[latitude, 1]`."""
        latitude = torch.tensor(self.latitude, dtype=torch.float64)
        step = (latitude[0] - latitude[1]).abs() / 2
        upper, lower = (latitude + step).clamp(max=90), (latitude - step).clamp(min=-90)
        areas = torch.sin(torch.deg2rad(upper)) - torch.sin(torch.deg2rad(lower))
        return (areas / areas.sum()).to(fields)[:, None]

    def global_mean(self, field: torch.Tensor) -> torch.Tensor:
        """Return the mean over the globe."""
        return (field * self.areas(field)).sum(-2).mean(-1)


class Energy(_Constraint):
    """The change of the mean moist and kinetic energy, in 1000 J/kg."""

    def forward(self, forecast: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        """Return the mean square."""
        terms = [(self._energy(forecast[:, lead]) - self._energy(last)) / 1000.0 for lead in range(forecast.shape[1])]
        return torch.stack(terms).square().mean()

    def _energy(self, fields: torch.Tensor) -> torch.Tensor:
        parts, total = self.split(fields), torch.zeros(())
        pressures = [101_325.0 * (1 - 6.5e-3 * height / 288.15) ** 5.25588 for height in self.heights]
        edges = [pressures[0], *((a + b) / 2 for a, b in zip(pressures[1:], pressures[:-1], strict=True)), pressures[-1]]
        for level in range(len(self.heights)):
            mass = (edges[level] - edges[level + 1]) / (edges[0] - edges[-1])
            kinetic = 0.5 * (parts["u"][:, level] ** 2 + parts["v"][:, level] ** 2)
            heat = HEAT_CAPACITY * parts["temperature"][:, level] + LATENT_HEAT * parts["humidity"][:, level]
            total = total + mass * self.global_mean(heat + kinetic)
        return total


class Mass(_Constraint):
    """The change of the mean pressure at the ground, in 100 Pa."""

    def forward(self, forecast: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        """Return the mean square."""
        terms = []
        for lead in range(forecast.shape[1]):
            after, before = self.split(forecast[:, lead])["pressure"][:, 0], self.split(last)["pressure"][:, 0]
            terms.append((self.global_mean(after) - self.global_mean(before)) / 100.0)
        return torch.stack(terms).square().mean()


class Hydrostatic(_Constraint):
    """The virtual temperature of each layer, less what its thickness implies, in K."""

    def forward(self, forecast: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        """Return the mean square."""
        terms = []
        for lead in range(forecast.shape[1]):
            parts = self.split(forecast[:, lead])
            for low in range(len(self.heights) - 1):
                virtual = parts["temperature"] * (1 + 0.608 * parts["humidity"])
                mean = (virtual[:, low] + virtual[:, low + 1]) / 2
                ratio = torch.log(parts["pressure"][:, low].clamp(min=1.0)) - torch.log(
                    parts["pressure"][:, low + 1].clamp(min=1.0)
                )
                thickness = GRAVITY / GAS_CONSTANT * (self.heights[low + 1] - self.heights[low])
                low_p, high_p = ((1 - 6.5e-3 * self.heights[level] / 288.15) for level in (low, low + 1))
                terms.append((mean * ratio - thickness) / (5.25588 * math.log(low_p / high_p)))
        return torch.stack(terms).square().mean()


class Humidity(_Constraint):
    """Humidity outside 0 to 0.05 kg/kg, in 0.0005 kg/kg."""

    def forward(self, forecast: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        """Return the mean square."""
        terms = []
        for lead in range(forecast.shape[1]):
            humidity = self.split(forecast[:, lead])["humidity"]
            below, above = torch.relu(-humidity), torch.relu(humidity - 0.05)
            terms.append((below / 0.0005) ** 2 + (above / 0.0005) ** 2)
        return torch.stack(terms).mean()


class Spectral(_Constraint):
    """The logarithm of the power of each zonal wave, less that of the last field."""

    def forward(self, forecast: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        """Return the mean square."""
        terms = []
        for lead in range(forecast.shape[1]):
            after, before = self._power(forecast[:, lead]), self._power(last)
            least = 1e-6 * before[..., 1:].mean(-1, keepdim=True)
            terms.append(torch.log(after + least)[..., 1:] - torch.log(before + least)[..., 1:])
        return torch.stack(terms).square().mean()

    def _power(self, fields: torch.Tensor) -> torch.Tensor:
        waves = torch.fft.rfft(fields, dim=-1) / fields.shape[-1]
        power: torch.Tensor = (waves.abs() ** 2 * self.areas(fields)).sum(-2)
        return power


FIVE = {"energy": Energy, "mass": Mass, "hydrostatic": Hydrostatic, "humidity": Humidity, "spectral": Spectral}
