"""Augment windows of fields by changes that an atmosphere could show, with the same result for any number of workers.

In this order: a shift and a smoothing in time, a rotation about the Earth's axis, a mirror image at the equator (which
negates the northward wind and vorticity), a scaling of the deviations from the mean, noise, and the bounds of humidity.
Input and target are one window, so they share all of it, except the noise if `noise_steps` says so.

All random numbers come from Philox4x32-7, a counter-based generator: a number depends on the sample's key and on its place
in the window alone. `Augmenter` is plain torch for any device; `hasten.recipes.datacube.augment_kernel` does the same in one
pass on the CPU. Left out: a mirror image in longitude (a rotating planet has no such symmetry), and rotations about
another axis.

Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"; Box and Muller 1958.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from hasten.core.errors import JobError
from hasten.core.seeding import mix
from hasten.data.cube.channels import Channel
from hasten.data.cube.regrid import Grid
from hasten.recipes.datacube.quantities import HUMIDITY_BOUNDS, is_periodic, is_symmetric, quantity_of

Words = TypeVar("Words", torch.Tensor, npt.NDArray[np.int64])

MULTIPLIERS, KEY_STEPS = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)
ROUNDS = 7
"""The fewest that pass all tests of BigCrush."""
_LOW = 0xFFFFFFFF
_DRAWS, _NOISE = 1, 0
"""Last counter word: the draws of a sample, or the noise of its cells."""


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Kinds and strengths of augmentation. The defaults change nothing except humidity outside its bounds.

    Attributes:
        temperature_noise: Standard deviation of the noise in each cell, in K or in standard deviations of the channel (see
            `noise_units`); 0 is off.
        pressure_noise: Like `temperature_noise`, in Pa.
        humidity_noise: Like `temperature_noise`, in kg/kg for specific humidity.
        relative_humidity_noise: Like `temperature_noise`, as a fraction of saturation.
        noise_units: `physical`, or `normalised`: standard deviations of the channel, which must then be given.
        noise_steps: The noise is added to this many leading time steps, such as the input; None adds it to all.
        flip_frac: Fraction of samples mirrored at the equator; 0 is off.
        rotate_degrees: The globe is rotated about its axis by up to this angle in either direction, in whole columns; 0 is
            off, 180 is any angle.
        shift_steps: The window starts up to this many time steps later. It must have that many more than are returned; it
            never wraps around; 0 is off.
        smooth_steps: Standard deviation, in time steps, of the strongest Gaussian smoothing in time, for slow (geological)
            changes. Steps outside the window, or further than three standard deviations, have no weight; 0 is off.
        scale_frac: Deviations from the channel's mean are multiplied by 1 - this to 1 + this, by one factor for all channels
            of a sample. Absolute values, such as kelvins, are never scaled; 0 is off.

    Raises:
        JobError: A value is out of range.
    """

    temperature_noise: float = 0.0
    pressure_noise: float = 0.0
    humidity_noise: float = 0.0
    relative_humidity_noise: float = 0.0
    noise_units: Literal["physical", "normalised"] = "physical"
    noise_steps: int | None = None
    flip_frac: float = 0.0
    rotate_degrees: float = 0.0
    shift_steps: int = 0
    smooth_steps: float = 0.0
    scale_frac: float = 0.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name == "noise_units":
                if value not in {"physical", "normalised"}:
                    raise JobError(f"noise_units must be 'physical' or 'normalised', not {value!r}.")
            elif value is not None and not 0 <= value <= _LIMITS.get(name, math.inf):
                raise JobError(f"{name} must be from 0 to {_LIMITS.get(name, 'infinity')}, not {value!r}.")


_NOISE_OF = {
    "temperature": "temperature_noise",
    "pressure": "pressure_noise",
    "specific_humidity": "humidity_noise",
    "relative_humidity": "relative_humidity_noise",
}
_LIMITS = {"flip_frac": 1.0, "rotate_degrees": 180.0, "scale_frac": 0.9, "shift_steps": 1e6, "smooth_steps": 1e3}


class Draws(NamedTuple):
    """What was drawn for each sample of a batch.

    Attributes:
        keys: int64 `[batch, 2]`: the keys of the noise, 32 bits each.
        shift: int64 `[batch]`: time steps.
        roll: int64 `[batch]`: columns to the east.
        flip: bool `[batch]`.
        gain: float32 `[batch, channel]`: factor of the flip and the scaling.
        bias: float32 `[batch, channel]`: offset of the scaling.
        taps: float32 `[batch, time, 2 * reach + 1]`: weights of the neighbours in time; they add up to 1.
    """

    keys: npt.NDArray[np.int64]
    shift: npt.NDArray[np.int64]
    roll: npt.NDArray[np.int64]
    flip: npt.NDArray[np.bool_]
    gain: npt.NDArray[np.float32]
    bias: npt.NDArray[np.float32]
    taps: npt.NDArray[np.float32]


class Augmenter:
    """Augment batches of windows in plain torch, on the device where they are.

    Args:
        settings: Kinds and strengths.
        channels: The channels of a window.
        grid: Its grid.
        mean: Mean of each channel, in its units. Needed for `scale_frac`.
        std: Standard deviation of each channel, in its units. Needed for `noise_units="normalised"`.

    Raises:
        JobError: The channels or the grid do not allow a setting, or statistics are missing.
        DataError: Units are missing or unknown.
    """

    def __init__(
        self,
        settings: Augmentation,
        channels: Sequence[Channel],
        grid: Grid,
        *,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        if settings.rotate_degrees and not is_periodic(grid):
            raise JobError(
                "rotate_degrees needs equally spaced longitudes around the whole globe. Set it to 0 for this grid."
            )
        if settings.flip_frac and not is_symmetric(grid):
            raise JobError("flip_frac needs latitudes that are symmetric about the equator. Set it to 0 for this grid.")
        if settings.scale_frac and mean is None:
            raise JobError("scale_frac needs the mean of each channel, because it scales deviations from it.")
        if settings.noise_units == "normalised" and std is None:
            raise JobError("noise_units='normalised' needs the standard deviation of each channel.")
        self.settings, self.shape, self.num_channels = settings, grid.shape, len(channels)
        quantities = [quantity_of(channel) for channel in channels]
        noise = {name: float(getattr(settings, setting)) for name, setting in _NOISE_OF.items()}
        missing = [name for name, value in noise.items() if value and name not in {q.name for q in quantities}]
        if missing:
            raise JobError(f"the noise of {', '.join(missing)} needs such a channel; there is none. Set it to 0.")
        per_unit = [1 / q.factor for q in quantities] if settings.noise_units == "physical" else list(std or ())
        bounds = [HUMIDITY_BOUNDS.get(q.name, (-math.inf, math.inf)) for q in quantities]
        table = [
            [-1.0 if q.is_mirrored else 1.0 for q in quantities],
            [0.0] * len(quantities) if mean is None else list(mean),
            [noise.get(q.name, 0.0) * unit for q, unit in zip(quantities, per_unit, strict=True)],
            [(low - q.offset) / q.factor for (low, _), q in zip(bounds, quantities, strict=True)],
            [(high - q.offset) / q.factor for (_, high), q in zip(bounds, quantities, strict=True)],
        ]
        self.mirror, self.mean, self.sigma, self.low, self.high = np.array(table, np.float32)
        self.reach = math.ceil(3 * settings.smooth_steps)
        self.num_noisy = math.inf if settings.noise_steps is None else settings.noise_steps

    def draw(self, keys: Sequence[int] | torch.Tensor, num_steps: int) -> Draws:
        """Draw the parameters of samples.

        Args:
            keys: One integer for each sample, such as `key(seed, epoch, index)`.
            num_steps: Time steps that remain.
        """
        settings, whole = self.settings, np.asarray(keys, np.int64)
        pairs = np.stack([whole & _LOW, (whole >> 32) & _LOW], axis=1)
        words = np.concatenate(philox(pairs[:, :1], pairs[:, 1:], np.arange(2), 0, _DRAWS), axis=1)
        uniform = (words + 0.5) * 2.0**-32  # [batch, 8]
        columns = int(settings.rotate_degrees / 360 * self.shape[1])
        flip = uniform[:, 2] < settings.flip_frac
        sign = np.where(flip[:, None], self.mirror, 1.0)
        scale = 1 + settings.scale_frac * (2 * uniform[:, 3:4] - 1)
        smooth = settings.smooth_steps * uniform[:, 4, None, None]
        steps, offsets = np.arange(num_steps)[:, None], np.arange(-self.reach, self.reach + 1)
        inside = (steps + offsets >= 0) & (steps + offsets < num_steps) & (np.abs(offsets) <= 3 * smooth)
        taps = np.exp(-0.5 * (offsets / np.maximum(smooth, 1e-3)) ** 2) * inside
        return Draws(
            keys=pairs,
            shift=(uniform[:, 0] * (settings.shift_steps + 1)).astype(np.int64),
            roll=(uniform[:, 1] * (2 * columns + 1)).astype(np.int64) - columns,
            flip=flip,
            gain=(sign * scale).astype(np.float32),
            bias=(sign * (1 - scale) * self.mean).astype(np.float32),
            taps=(taps / taps.sum(-1, keepdims=True)).astype(np.float32),
        )

    def __call__(self, fields: torch.Tensor, keys: Sequence[int] | torch.Tensor) -> torch.Tensor:
        """Return an augmented copy of a batch.

        Args:
            fields: float32 `[batch, time + shift_steps, channel, latitude, longitude]`, in the units of the channels.
            keys: One integer for each sample, such as `key(seed, epoch, index)`.

        Returns:
            float32 `[batch, time, channel, latitude, longitude]`. Missing values stay missing, and smoothing spreads them.
        """
        steps = self.check(fields, keys)
        draws = self.draw(keys, steps)
        samples = []
        for sample, shift, roll, flip in zip(fields, draws.shift, draws.roll, draws.flip, strict=True):
            moved = sample[shift : shift + steps].roll(int(roll), -1)
            samples.append(moved.flip(-2) if flip else moved)
        out = torch.stack(samples)

        def there(array: npt.NDArray[Any]) -> torch.Tensor:
            return torch.from_numpy(array).to(out.device)

        if self.reach:
            out = _smoothed(out, there(draws.taps))
        out.mul_(there(draws.gain)[:, None, :, None, None]).add_(there(draws.bias)[:, None, :, None, None])
        noisy = np.flatnonzero(self.sigma)
        for step in range(int(min(self.num_noisy, steps)) if len(noisy) else 0):
            noise = normals(there(draws.keys), there(step * self.num_channels + noisy), self.shape)
            out[:, step].index_add_(1, there(noisy), noise.mul_(there(self.sigma[noisy, None, None])))
        for channel in np.flatnonzero(np.isfinite(self.low)):
            out[:, :, channel].clamp_(float(self.low[channel]), float(self.high[channel]))
        return out

    def check(self, windows: Sequence[torch.Tensor] | torch.Tensor, keys: Sequence[int] | torch.Tensor) -> int:
        """Return how many time steps of the windows remain.

        Raises:
            JobError: They are not float32 windows of these channels on this grid, one for each key, or they are too short.
        """
        least, where = self.settings.shift_steps + 1, (self.num_channels, *self.shape)
        shape = tuple(windows[0].shape)
        for window in windows:
            if window.shape != shape or shape[1:] != where or shape[0] < least or window.dtype != torch.float32:
                raise JobError(
                    f"windows must be float32 [{least} or more, {', '.join(map(str, where))}] (time, channel, latitude, "
                    f"longitude), all of the same length; not {window.dtype} {list(window.shape)}."
                )
        if len(keys) != len(windows):
            raise JobError(f"each window needs one key; there are {len(windows)} windows and {len(keys)} keys.")
        return shape[0] - self.settings.shift_steps


def key(seed: int, epoch: int, index: int) -> int:
    """Return the key of a sample: its random numbers are a pure function of it."""
    return mix(seed, epoch, index)


def _smoothed(fields: torch.Tensor, taps: torch.Tensor) -> torch.Tensor:
    steps, reach = fields.shape[1], taps.shape[2] // 2
    out = torch.zeros_like(fields)
    for place in range(max(0, reach - steps + 1), min(2 * reach, reach + steps - 1) + 1):
        offset = place - reach
        first, last = max(0, -offset), steps - max(0, offset)
        weight = taps[:, first:last, place, None, None, None]
        out[:, first:last] += torch.where(weight == 0, 0, weight * fields[:, first + offset : last + offset])
    return out


def philox(key0: Words, key1: Words, block: Words, field: Words | int, last: int) -> tuple[Words, Words, Words, Words]:
    """Return four random words of 32 bits, in int64, for each pair of key words, and counter `(block, field, 0, last)`.

    The shapes broadcast. The words may be tensors or arrays.
    """
    zero = (key0 + block + field) * 0
    a, b, c, d = zero + block, zero + field, zero, zero + last
    for number in range(ROUNDS):
        first, second = a * MULTIPLIERS[0], c * MULTIPLIERS[1]  # 64 bits, wrapped: only the bits matter
        k0, k1 = (key0 + number * KEY_STEPS[0]) & _LOW, (key1 + number * KEY_STEPS[1]) & _LOW
        a, b, c, d = ((second >> 32) & _LOW) ^ b ^ k0, second & _LOW, ((first >> 32) & _LOW) ^ d ^ k1, first & _LOW
    return a, b, c, d


def normals(keys: torch.Tensor, fields: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    """Return normally distributed numbers for some fields of each sample, float32 `[batch, field, latitude, longitude]`.

    Block j of n gives the cells j, j + n, j + 2n and j + 3n.

    Args:
        keys: int64 `[batch, 2]`.
        fields: int64 `[field]`: the number of each field in its window.
        shape: Latitudes and longitudes.
    """
    count = -(-shape[0] * shape[1] // 4)
    block = torch.arange(count, device=keys.device)
    a, b, c, d = philox(keys[:, :1, None], keys[:, 1:, None], block, fields[:, None], _NOISE)
    parts = []
    for radius, angle in ((a, b), (c, d)):
        length = torch.sqrt(-2 * torch.log((radius.float() + 0.5) * 2.0**-32))
        signed = torch.where(angle >= 1 << 31, angle - (1 << 32), angle).float() * (math.tau * 2.0**-32)
        parts += [length * torch.cos(signed), length * torch.sin(signed)]
    drawn: torch.Tensor = torch.cat(parts, dim=2)[..., : shape[0] * shape[1]].unflatten(2, shape)
    return drawn
