"""Augment windows on the CPU in one pass over memory: the same changes and random numbers as `Augmenter`, in a fused kernel.

Numba compiles the generator and the normal distribution to vector instructions; polynomials (Cephes, single precision)
replace the logarithm, sine and cosine. Windows may be views into a larger array: a batch is gathered and augmented at once.
The kernel uses one thread, so it is safe inside forked workers; `num_threads` runs several samples at the same time. This
module needs Numba to be imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
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
fused = partial(kernel, fuses=True)
CHUNK = 512
"""Blocks of four numbers that are made at a time."""
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
        JobError: The windows have the wrong shape or type, or there is not one key for each.
    """
    steps = augmenter.check(windows, keys)
    draws = augmenter.draw(keys, steps)
    rows = np.broadcast_arrays(draws.gain, draws.bias, augmenter.sigma, augmenter.low, augmenter.high)
    table = np.stack(rows, axis=1)  # [batch, 5, channel]
    words = draws.keys.astype(np.uint64)
    num_noisy = int(min(augmenter.num_noisy, steps))
    shape = (len(windows), steps, augmenter.num_channels, *augmenter.shape)
    out = torch.from_numpy(np.empty(shape, np.float32))  # NumPy asks for huge pages: fewer page faults than torch.empty

    def run(number: int) -> None:
        shift, roll = draws.shift[number], draws.roll[number] % augmenter.shape[1]
        window = np.ascontiguousarray(windows[number].numpy()[shift : shift + steps])
        given = draws.taps[number], roll, draws.flip[number], table[number], num_noisy, words[number]
        _augment(window, out[number].numpy(), *given)

    if num_threads == 1:
        for number in range(len(windows)):
            run(number)
    else:
        with ThreadPoolExecutor(num_threads) as pool:
            list(pool.map(run, range(len(windows))))
    return out


@fused
def _augment(  # noqa: PLR0917  a kernel is called by position
    window: Floats, out: Floats, taps: Floats, roll: int, flip: bool, table: Floats, num_noisy: int, key: Words  # noqa: FBT001
) -> None:  # fmt: skip
    """Augment one window; `table` has factor, offset, noise, lowest and highest value of each channel."""
    steps, channels, rows, columns = out.shape
    reach, words = taps.shape[1] // 2, np.empty((4, CHUNK), np.uint32)
    for channel in range(channels):
        gain, bias, sigma, low, high = table[:, channel]
        for step in range(steps):
            add = False
            for place in range(2 * reach + 1):
                if taps[step, place] != _f(0):
                    other, weight = window[step + place - reach, channel], taps[step, place] * gain
                    _move(other, out[step, channel], roll, flip, weight, bias, add)
                    add = True
            field = out[step, channel].reshape(rows * columns)
            if sigma > 0 and step < num_noisy:
                _add_noise(field, sigma, key[0], key[1], _w(step * channels + channel), words)
            if low > -np.inf:
                for j in range(field.size):
                    value = low if field[j] < low else field[j]  # noqa: FURB136  keeps a NaN
                    field[j] = high if value > high else value  # noqa: FURB136


@fused
def _move(  # noqa: PLR0917  a kernel is called by position
    field: Floats, out: Floats, roll: int, flip: bool, weight: float, bias: float, add: bool  # noqa: FBT001
) -> None:  # fmt: skip
    """Write a weighted field, rolled to the east and flipped, to another with an offset, or add it without."""
    rows, columns = field.shape
    for row in range(rows):
        source = rows - 1 - row if flip else row
        if add:
            for j in range(roll):
                out[row, j] += weight * field[source, j + columns - roll]
            for j in range(columns - roll):
                out[row, j + roll] += weight * field[source, j]
        else:
            for j in range(roll):
                out[row, j] = weight * field[source, j + columns - roll] + bias
            for j in range(columns - roll):
                out[row, j + roll] = weight * field[source, j] + bias


@fused
def _add_noise(  # noqa: PLR0917
    field: Floats, sigma: float, key0: np.uint64, key1: np.uint64, number: np.uint64, words: Words
) -> None:
    """Add normally distributed noise to a field; see `hasten.recipes.datacube.augment.normals`."""
    count = -(-field.size // 4)
    for start in range(0, count, CHUNK):  # the words stay in the first cache
        length = min(CHUNK, count - start)
        for j in range(length):
            a, b, c, d, k0, k1 = _w(start + j), number, _ZERO, _ZERO, key0, key1
            for _ in range(ROUNDS):  # only the low halves of a, b, c and d count
                first, second = _M0 * (a & _LOW), _M1 * (c & _LOW)
                a, b = (second >> _HALF) ^ b ^ k0, second
                c, d = (first >> _HALF) ^ d ^ k1, first
                k0, k1 = k0 + _K0, k1 + _K1
            words[0, j], words[1, j], words[2, j], words[3, j] = _u(a), _u(b), _u(c), _u(d)
        for half in range(2):
            radius, angle = words[2 * half], words[2 * half + 1]
            cosines, sines = field[2 * half * count + start :], field[(2 * half + 1) * count + start :]
            both = min(length, sines.size)
            for j in range(both):
                cosine, sine = _pair(radius[j], angle[j])
                cosines[j] += sigma * cosine
                sines[j] += sigma * sine
            for j in range(both, min(length, cosines.size)):  # the number of cells may be no multiple of 4
                cosines[j] += sigma * _pair(radius[j], angle[j])[0]


@fused
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
    cosine = ((_f(2.4433157e-5) * y - _f(1.3887316e-3)) * y + _f(4.1666646e-2)) * y * y - _f(0.5) * y + _f(1)
    odd = _u(quadrant & _u(1)) != _u(0)
    first, second = (sine, cosine) if odd else (cosine, sine)
    first = -first if quadrant == _u(1) or quadrant == _u(2) else first
    return length * first, length * (-second if quadrant >= _u(2) else second)
