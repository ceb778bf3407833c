"""Penalise forecasts that break physical laws: energy, mass, hydrostatic balance, bounds of humidity, and the spectrum.

One Fourier transform along the longitudes serves three of them: its zonal means give the changes of energy and mass, and the
power of its waves gives the kinetic energy (Parseval) and the spectrum. The transform is that of the *change* since the last
field, so no digits are lost to large means.

| term | penalises | in units of |
|---|---|---|
| `energy` | change of the global mean of cp T + Lv q + (u² + v²) / 2, weighted by mass | `Scales.energy_j_kg` |
| `mass` | change of the global mean of the surface pressure, or of the pressure at the lowest height | `Scales.mass_pa` |
| `hydrostatic` | virtual temperature of a layer, less what its thickness implies | `Scales.hydrostatic_k` |
| `humidity` | humidity outside its bounds | `Scales.humidity_frac` of the upper bound |
| `spectral` | logarithm of the power of each zonal wave, less that of the last field | `Scales.spectral` |

Each term is the mean of squares over samples and leads, and over what remains: layers, cells, or channels and waves. Without
temperature, energy uses the thickness of the layers between pressure levels. On heights, it uses the mass of the standard
atmosphere. Left out: fluxes through the top and the ground. Energy and mass are therefore conserved only approximately, and
their scales say how well.

Source: Holton and Hakim, "An Introduction to Dynamic Meteorology", chapters 1 and 2; Kendall et al. 2018 (learned weights).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.autograd.function import once_differentiable

from hasten.core.errors import JobError
from hasten.data.cube.channels import Channel
from hasten.data.cube.regrid import Grid
from hasten.recipes.datacube import quantities
from hasten.recipes.datacube.quantities import HUMIDITY_BOUNDS, Quantity, level_of
from hasten.recipes.datacube.synth import GAS_CONSTANT, GRAVITY

HEAT_CAPACITY = 1004.6
"""Of dry air at constant pressure, in J/(kg K)."""
LATENT_HEAT = 2.501e6
"""Of vaporisation at 0 degrees C, in J/kg."""
VIRTUAL = 0.608
"""The virtual temperature is T * (1 + this * q)."""
LEAST_POWER = 1e-6
"""Added to the power of each wave, as a fraction of the mean over the waves: the logarithm of zero is infinite."""
LEAST_TERM = 0.01
"""Added to each term when weights are learned, so that a term of zero does not raise its weight without bound."""
NAMES = ("energy", "mass", "hydrostatic", "humidity", "spectral")
_PER_UNIT = {"temperature": HEAT_CAPACITY, "specific_humidity": LATENT_HEAT}


@dataclass(frozen=True, kw_only=True)
class Scales:
    """Deviations that count as 1.

    Attributes:
        energy_j_kg: Of the mean energy, in J/kg; 1000 is about 1 K.
        mass_pa: Of the mean pressure, in Pa.
        hydrostatic_k: Of the virtual temperature of a layer, in K.
        humidity_frac: Of humidity outside its bounds, as a fraction of the upper bound.
        spectral: Of the natural logarithm of the power of a wave.
    """

    energy_j_kg: float = 1000.0
    mass_pa: float = 100.0
    hydrostatic_k: float = 1.0
    humidity_frac: float = 0.01
    spectral: float = 1.0


class Constraints(nn.Module):
    """Compute all constraints that the channels and the grid allow, in one pass, in float32 whatever autocast says.

    Args:
        channels: The channels of a forecast, in the units of the files. All levels of a quantity have the same units.
        grid: Its grid.
        weights: Weight of each constraint, not negative; 0 leaves one out. None gives each possible one the weight 1.
        learned: Learn the weights, starting from those given. The total is then the sum of `w * (term + 0.01) - w0 log(w)`,
            least at `w = w0 / (term + 0.01)`: weights stay positive and below `100 * w0`. Exclude them from weight decay.
        scales: Deviations that count as 1.

    Attributes:
        refused: Why a constraint is not possible here, by its name.

    Raises:
        JobError: A weight is negative, unknown, or for a constraint that is not possible.
        DataError: Units are missing or unknown.
    """

    first_weights: torch.Tensor
    root: torch.Tensor
    linear: torch.Tensor
    quadratic: torch.Tensor
    parseval: torch.Tensor
    thickness: torch.Tensor
    depth: torch.Tensor

    def __init__(
        self,
        channels: Sequence[Channel],
        grid: Grid,
        *,
        weights: Mapping[str, float] | None = None,
        learned: bool = False,
        scales: Scales | None = None,
    ) -> None:
        super().__init__()
        self.scales, self.columns = scales or Scales(), grid.shape[1]
        given = [_Field(one, quantities.quantity_of(one), quantities.standard_pressure(one)) for one in channels]
        self.groups: dict[str, list[_Field]] = {}
        for field in given:
            self.groups.setdefault(field.group, []).append(field)
            if field.quantity != self.groups[field.group][0].quantity:
                raise JobError(f"all channels of a quantity must have the same units, unlike {field.channel.variable!r}.")
        fields = [field for group in self.groups.values() for field in group]  # each group is one slice
        self.order = None if fields == given else [given.index(field) for field in fields]
        energy, quadratic = _energy(fields)
        surface = [field for field in self.groups.get("pressure", []) if field.channel.level is None]
        ground = max(surface or self.groups.get("pressure@levels", []), key=lambda field: field.pressure, default=None)
        mass = [field.quantity.factor if field is ground else 0.0 for field in fields]
        self.balance, thickness, depth = self._layers()
        self.humid = [group for group in self.groups if group.split("@")[0] in HUMIDITY_BOUNDS]

        whole = "" if quantities.is_global(grid) else "the grid does not cover the globe"
        reasons = {
            "energy": whole or ("" if any(energy) else "it needs temperature, or geopotential at two pressure levels"),
            "mass": whole or ("" if ground else "it needs the pressure at the surface or at heights"),
            "hydrostatic": "" if self.balance else "it needs temperature, and geopotential at the same pressure levels or "
            "pressure at the same heights",
            "humidity": "" if self.humid else "it needs specific or relative humidity",
            "spectral": "" if quantities.is_periodic(grid) else "the longitudes are not equally spaced around the globe",
        }  # fmt: skip
        self.refused = {name: reason for name, reason in reasons.items() if reason}
        weights = {name: 1.0 for name in NAMES if name not in self.refused} if weights is None else weights
        for name, weight in weights.items():
            if name not in NAMES or not 0 <= weight < math.inf:
                raise JobError(f"a weight must be 0 or more, for one of {', '.join(NAMES)}; not {name!r}: {weight!r}.")
            if weight and name in self.refused:
                raise JobError(f"the constraint {name!r} is not possible here: {self.refused[name]}. Remove its weight.")
        self.active = [name for name in NAMES if weights.get(name)]
        first = [weights[name] for name in self.active]
        self.log_weights = nn.Parameter(torch.tensor(first).log(), requires_grad=learned)
        tables: dict[str, Any] = {
            "first_weights": first,
            "root": np.sqrt(quantities.cell_areas(grid))[:, None],
            "linear": np.stack([energy, mass], axis=1),
            "quadratic": quadratic,
            "parseval": [1.0 if wave in {0, self.columns / 2} else 2.0 for wave in range(self.columns // 2 + 1)],
            "thickness": np.reshape(thickness, (-1, 1, 1)),
            "depth": np.reshape(depth, (-1, 1, 1)),
        }
        for name, values in tables.items():
            self.register_buffer(name, torch.as_tensor(np.asarray(values), dtype=torch.float32), persistent=False)

    @property
    def weights(self) -> dict[str, float]:
        """The present weight of each constraint."""
        return dict(zip(self.active, self.log_weights.exp().tolist(), strict=True))

    def forward(self, forecast: torch.Tensor, last: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Compare forecasts with the laws, and with the fields they start from.

        Args:
            forecast: `[batch, lead, channel, latitude, longitude]`, in the units of the channels.
            last: The last known fields, `[batch, channel, latitude, longitude]`. Missing values count as unchanged.

        Returns:
            The weighted sum, and each constraint before weighting, without gradient.

        Raises:
            JobError: The fields have the wrong shape.
        """
        field = (len(self.linear), len(self.root), self.columns)
        if forecast.dim() != 5 or forecast.shape[2:] != field or last.shape != (len(forecast), *field):
            raise JobError(
                f"a forecast must be [batch, lead, {', '.join(map(str, field))}] and the last field the same without leads, "
                f"not {list(forecast.shape)} and {list(last.shape)}."
            )
        with torch.autocast(forecast.device.type, enabled=False):
            forecast, last = forecast.to(self.root.dtype), last.to(self.root.dtype)
            last = torch.where(last.isnan(), forecast[:, 0].detach(), last)
            if self.order is not None:
                order = torch.tensor(self.order, device=last.device)
                forecast, last = forecast.index_select(2, order), last.index_select(1, order)
            parts = dict(zip(self.groups, forecast.split([len(group) for group in self.groups.values()], 2), strict=True))
            terms: dict[str, torch.Tensor] = {}
            if {"energy", "mass", "spectral"} & set(self.active):
                terms = self._zonal(forecast, last)
            if "hydrostatic" in self.active:
                terms["hydrostatic"] = self._hydrostatic(parts).square().mean()
            if "humidity" in self.active:
                terms["humidity"] = self._humidity(parts)
            found = torch.stack([terms[name] for name in self.active])
            weights = self.log_weights.exp()
            total = (weights * found).sum()
            if self.log_weights.requires_grad:
                total = total + (weights * LEAST_TERM - self.first_weights * self.log_weights).sum()
        return total, dict(zip(self.active, found.detach(), strict=True))

    def _zonal(self, forecast: torch.Tensor, last: torch.Tensor) -> dict[str, torch.Tensor]:
        mean, power, before = _Zonal.apply(forecast, last, self.root)  # type: ignore[no-untyped-call]
        energy, mass = (mean @ self.linear).unbind(-1)
        energy = energy + ((power - before[:, None]) @ self.parseval) @ self.quadratic
        least = LEAST_POWER * before[..., 1:].mean(-1, keepdim=True)[:, None] + torch.finfo(before.dtype).tiny
        ratio = (power + least).log() - (before[:, None] + least).log()
        return {
            "energy": (energy / self.scales.energy_j_kg).square().mean(),
            "mass": (mass / self.scales.mass_pa).square().mean(),
            "spectral": (ratio[..., 1:] / self.scales.spectral).square().mean(),
        }

    def _hydrostatic(self, parts: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the error of each layer `[batch, lead, layer, latitude, longitude]`, relative to its scale."""
        temperature, other = (self._si(parts, group) for group in ("temperature@levels", self.balance))
        humid = self.groups.get("specific_humidity@levels", [])
        if [field.pressure for field in humid] == [field.pressure for field in self.groups["temperature@levels"]]:
            temperature = temperature * (1 + VIRTUAL * self._si(parts, "specific_humidity@levels"))
        virtual = 0.5 * (temperature[:, :, 1:] + temperature[:, :, :-1])
        if self.balance == "geopotential@levels":
            error = virtual + other.diff(dim=2) / (GAS_CONSTANT * self.depth)
        else:
            error = (virtual * other.clamp_min(1.0).log().diff(dim=2) - self.thickness / GAS_CONSTANT) / self.depth
        return error / self.scales.hydrostatic_k

    def _humidity(self, parts: Mapping[str, torch.Tensor]) -> torch.Tensor:
        outside = []
        for group in self.humid:
            low, high = HUMIDITY_BOUNDS[group.split("@")[0]]
            humidity = self._si(parts, group)
            outside.append(((humidity - humidity.clamp(low, high)) / (self.scales.humidity_frac * high)).square().flatten())
        return torch.cat(outside).mean()

    def _si(self, parts: Mapping[str, torch.Tensor], group: str) -> torch.Tensor:
        quantity = self.groups[group][0].quantity
        if quantity.factor == 1 and quantity.offset == 0:
            return parts[group]
        return parts[group] * quantity.factor + quantity.offset

    def _layers(self) -> tuple[str, Any, Any]:
        """Return the group that gives the thickness of layers, their thickness in J/kg, and log of their pressure ratio."""
        levels = [level_of(field.channel) or ("", 0.0) for field in self.groups.get("temperature@levels", [])]
        for group, kind in (("geopotential@levels", "pressure"), ("pressure@levels", "height")):
            fields = self.groups.get(group, [])
            if len(levels) > 1 and levels == [level_of(field.channel) for field in fields] and levels[0][0] == kind:
                heights = [level[1] for level in levels]
                return group, -GRAVITY * np.diff(heights), np.diff(np.log([field.pressure for field in fields]))
        return "", [], []


class _Field(NamedTuple):
    channel: Channel
    quantity: Quantity
    pressure: float

    @property
    def group(self) -> str:
        return f"{self.quantity.name}@levels" if self.pressure else self.quantity.name


def _energy(fields: Sequence[_Field]) -> tuple[list[float], list[float]]:
    """Return how much the mean of each channel, and of its square, adds to the energy per mass, in J/kg per unit."""
    linear, quadratic = [0.0] * len(fields), [0.0] * len(fields)
    warm = [field.pressure for field in fields if field.quantity.name in {"temperature", "geopotential"}]
    if not warm:
        return linear, quadratic
    known = np.unique([field.pressure for field in fields if bool(field.pressure) == any(warm)])
    edges = np.concatenate([known[:1], (known[1:] + known[:-1]) / 2, known[-1:]])
    share = dict(zip(known, np.diff(edges) / np.ptp(known) if len(known) > 1 else [1.0], strict=True))
    total = sum(share.get(field.pressure, 0.0) for field in fields if field.quantity.name == "temperature")
    for place, (upper, lower) in enumerate(pairwise(fields)):
        if not total and upper.group == lower.group == "geopotential@levels":
            layer = (lower.pressure - upper.pressure) / np.ptp(known) / math.log(lower.pressure / upper.pressure)
            linear[place] += HEAT_CAPACITY / GAS_CONSTANT * upper.quantity.factor * layer
            linear[place + 1] -= HEAT_CAPACITY / GAS_CONSTANT * upper.quantity.factor * layer
    if total or any(linear):
        for place, (_, quantity, pressure) in enumerate(fields):
            mass = share.get(pressure, 0.0) / (total or 1.0)
            linear[place] += _PER_UNIT.get(quantity.name, 0.0) * quantity.factor * mass
            quadratic[place] = 0.5 * quantity.factor**2 * mass * quantity.name.endswith("ward_wind")
    return linear, quadratic


class _Zonal(torch.autograd.Function):
    """Return the mean change `[batch, lead, channel]`, and the power of each zonal wave after and before it.

    The power `[batch, lead, channel, wave]` is the mean over latitudes, weighted by area. Its gradient is one inverse
    transform; PyTorch's own gradient of `rfft` takes a complex one of twice the size, after several passes over the waves.
    """

    @staticmethod
    def forward(ctx: Any, forecast: torch.Tensor, last: torch.Tensor, root: torch.Tensor) -> tuple[torch.Tensor, ...]:
        waves = torch.fft.rfft((forecast - last[:, None]).mul_(root), norm="forward")
        mean = (waves[..., 0].real * root[:, 0]).sum(-1)
        start = torch.fft.rfft(last * root, norm="forward")
        waves += start[:, None]
        ctx.save_for_backward(waves, root)
        ctx.columns = forecast.shape[-1]
        before = _power(start)
        ctx.mark_non_differentiable(before)
        return mean, _power(waves), before

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_mean: torch.Tensor, of_power: torch.Tensor, _: Any) -> tuple[torch.Tensor, None, None]:
        waves, root = ctx.saved_tensors
        columns = ctx.columns
        factor = of_power.clone()
        factor[..., 1 : (columns + 1) // 2] /= 2  # the inverse transform counts these twice
        slope = torch.view_as_complex(torch.view_as_real(waves) * factor[..., None, :, None])
        slope[..., 0] += 0.5 * of_mean[..., None] * root[:, 0]
        return torch.fft.irfft(slope, n=columns, norm="forward").mul_(root * (2 / columns)), None, None


def _power(waves: torch.Tensor) -> torch.Tensor:
    power: torch.Tensor = torch.view_as_real(waves).flatten(-2).square().sum(-2).unflatten(-1, (-1, 2)).sum(-1)
    return power
