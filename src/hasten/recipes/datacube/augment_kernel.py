"""Augment windows on the CPU in one pass over memory: the same changes and random numbers as `Augmenter`, in a fused kernel.

Numba compiles the generator and the normal distribution to vector instructions; polynomials (Cephes, single precision)
replace the logarithm, sine and cosine. Windows may be views into a larger array: a batch is gathered and augmented at once.
The kernel uses one thread, so it is safe inside forked workers; `num_threads` runs several samples at the same time. This
module needs Numba to be imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from hasten.recipes.datacube.augment import KEY_STEPS, MULTIPLIERS, ROUNDS, Augmenter
from hasten.recipes.needed import kernel

Floats = npt.NDArray[np.float32]
Words = npt.NDArray[Any]

_f, _u, _i, _w = np.float32, np.uint32, np.int32, np.uint64
_M0, _M1, _K0, _K1 = (_w(word) for word in (*MULTIPLIERS, *KEY_STEPS))
_LOW, _HALF, _ZERO = _w(0xFFFFFFFF), _w(32), _w(0)


def augment(
    augmenter: Augmenter,
    windows: Sequence[torch.Tensor] | torch.Tensor,
    keys: Sequence[int] | torch.Tensor,
    *,
    num_threads: int = 1,
) -> torch.Tensor:
    """Gather and augment a batch.

    Args:
        augmenter: Settings, channels and grid.
        windows: For each sample float32 `[time + shift_steps, channel, latitude, longitude]` on the CPU. Views are read in
            place where they are contiguous.
        keys: One integer for each sample, such as `key(seed, epoch, index)`.
        num_threads: Threads; the result is the same for any number. Keep 1 inside workers.

    Returns:
        float32 `[batch, time, channel, latitude, longitude]`.

    Raises:
        JobError: The windows have the wrong shape.
    """
    steps = augmenter.check(tuple(windows[0].shape))
    draws = augmenter.draw(keys, steps)
    gain, bias = augmenter.affine(draws)
    limits = torch.stack([augmenter.sigma, augmenter.low, augmenter.high]).expand(len(gain), -1, -1)
    table = torch.cat([torch.stack([gain, bias], dim=1), limits], dim=1).numpy()  # [batch, 5, channel]
    taps, words = draws.taps.float().numpy(), draws.keys.numpy().astype(np.uint64)
    places = list(zip(draws.shift.tolist(), draws.roll.tolist(), draws.flip.tolist(), strict=True))
    out = torch.empty(len(windows), steps, augmenter.num_channels, *augmenter.shape)

    def run(number: int) -> None:
        augmenter.check(tuple(windows[number].shape))
        shift, roll, flip = places[number]
        window = np.ascontiguousarray(windows[number].numpy()[shift : shift + steps])
        start, num_noisy = roll % augmenter.shape[1], min(augmenter.num_noisy, steps)
        _augment(window, out[number].numpy(), taps[number], start, flip, table[number], num_noisy, words[number])

    if num_threads == 1:
        for number in range(len(windows)):
            run(number)
    else:
        with ThreadPoolExecutor(num_threads) as pool:
            list(pool.map(run, range(len(windows))))
    return out


@kernel
def _augment(  # noqa: PLR0917  a kernel is called by position
    window: Floats, out: Floats, taps: Floats, roll: int, flip: bool, table: Floats, num_noisy: int, key: Words  # noqa: FBT001
) -> None:  # fmt: skip
    """Augment one window; `table` has factor, offset, noise, lowest and highest value of each channel."""
    steps, channels, rows, columns = out.shape
    count = -(-rows * columns // 4)
    words, noise, none = np.empty((4, count), np.uint32), np.empty(4 * count, np.float32), np.empty(0, np.float32)
    for step in range(steps):
        for channel in range(channels):
            gain, bias, sigma, low, high = table[:, channel]
            noisy = sigma > 0 and step < num_noisy
            if noisy:
                _normals(key[0], key[1], _w(step * channels + channel), words, noise)
            for row in range(rows):
                line = out[step, channel, row]
                _move(window[:, channel, rows - 1 - row if flip else row], line, roll, taps[step], step)
                _finish(line, noise[row * columns : (row + 1) * columns] if noisy else none, gain, bias, sigma, low, high)


@kernel
def _move(lines: Floats, line: Floats, roll: int, taps: Floats, step: int) -> None:
    """Write a line of one step, rolled to the east, and smoothed over `lines`, the steps `[time, longitude]`."""
    steps, columns = lines.shape
    reach = taps.size // 2
    first, last = max(0, reach - step), min(2 * reach, reach + steps - 1 - step)
    for place in range(first, last + 1):
        other, weight = lines[step + place - reach], taps[place] if reach else _f(1)
        if place == first:
            for j in range(roll):
                line[j] = weight * other[j + columns - roll]
            for j in range(columns - roll):
                line[j + roll] = weight * other[j]
        else:
            for j in range(roll):
                line[j] += weight * other[j + columns - roll]
            for j in range(columns - roll):
                line[j + roll] += weight * other[j]


@kernel
def _finish(  # noqa: PLR0917  a kernel is called by position
    line: Floats, noise: Floats, gain: float, bias: float, sigma: float, low: float, high: float
) -> None:
    """Scale a line, add noise unless it is empty, and clamp the values; a NaN stays one."""
    for j in range(line.size):
        line[j] = line[j] * gain + bias
    for j in range(noise.size):
        line[j] += sigma * noise[j]
    if low > -np.inf:
        for j in range(line.size):
            value = low if line[j] < low else line[j]  # noqa: FURB136  keeps a NaN
            line[j] = high if value > high else value  # noqa: FURB136


@kernel
def _normals(key0: np.uint64, key1: np.uint64, field: np.uint64, words: Words, noise: Floats) -> None:
    """Fill `noise` with normally distributed numbers; see `hasten.recipes.datacube.augment.normals`."""
    count = words.shape[1]
    for j in range(count):
        a, b, c, d, k0, k1 = _w(j), field, _ZERO, _ZERO, key0, key1
        for _ in range(ROUNDS):
            first, second = _M0 * a, _M1 * c
            a, b = (second >> _HALF) ^ b ^ k0, second & _LOW
            c, d = (first >> _HALF) ^ d ^ k1, first & _LOW
            k0, k1 = (k0 + _K0) & _LOW, (k1 + _K1) & _LOW
        words[0, j], words[1, j], words[2, j], words[3, j] = _u(a), _u(b), _u(c), _u(d)
    for half in range(2):
        radius, angle = words[2 * half], words[2 * half + 1]
        cosines, sines = noise[2 * half * count : (2 * half + 1) * count], noise[(2 * half + 1) * count :]
        for j in range(count):
            cosines[j], sines[j] = _pair(radius[j], angle[j])


@kernel
def _pair(radius: np.uint32, angle: np.uint32) -> tuple[np.float32, np.float32]:
    """Return two independent normally distributed numbers from two random words (Box and Muller 1958)."""
    uniform = _f((_f(radius) + _f(0.5)) * _f(2.0**-32))
    bits = uniform.view(_i)
    exponent = _i(_i(bits - _i(0x3F3504F3)) >> _i(23))
    m = _i(bits - _i(exponent << _i(23))).view(_f) - _f(1)  # from sqrt(1/2) - 1 to sqrt(2) - 1
    p = ((_f(7.0376836292e-2) * m - _f(1.1514610310e-1)) * m + _f(1.1676998740e-1)) * m - _f(1.2420140846e-1)
    p = (((p * m + _f(1.4249322787e-1)) * m - _f(1.6668057665e-1)) * m + _f(2.0000714765e-1)) * m - _f(2.4999993993e-1)
    p = p * m + _f(3.3333331174e-1)
    logarithm = m * m * m * p - _f(0.5) * m * m + m + _f(exponent) * _f(0.6931471805599453)
    length = np.sqrt(_f(-2) * logarithm)
    quadrant = _u(_u(angle + _u(0x20000000)) >> _u(30))
    x = _f(_i(_u(angle - _u(quadrant << _u(30))))) * _f(2 * np.pi * 2.0**-32)  # from -pi/4 to pi/4
    y = x * x
    sine = ((_f(-1.9515295891e-4) * y + _f(8.3321608736e-3)) * y - _f(1.6666654611e-1)) * y * x + x
    cosine = (
        ((_f(2.443315711809948e-5) * y - _f(1.388731625493765e-3)) * y + _f(4.166664568298827e-2)) * y * y
        - _f(0.5) * y
        + _f(1)
    )
    odd = _u(quadrant & _u(1)) != _u(0)
    first, second = (sine, cosine) if odd else (cosine, sine)
    first = -first if quadrant == _u(1) or quadrant == _u(2) else first
    return length * first, length * (-second if quadrant >= _u(2) else second)
