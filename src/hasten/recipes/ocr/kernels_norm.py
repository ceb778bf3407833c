"""The passes of `normed` over bfloat16 pixels of a CPU, in vector instructions and in threads.

A bfloat16 number is the upper half of a float32: it is widened by a shift, and narrowed by one after rounding to nearest,
ties to even. Pixels lie in rows of whole pixels, whose channels repeat, so that each inner loop is one over a row of fixed
coefficients. Each thread takes as many rows, those that it wrote as a thread of PyTorch. Sums are taken lane by lane, in
float32 over `FLUSH` rows and in float64 beyond, of what lies beside a shift near the mean, so that little is cancelled.

Source of the shift: Chan, Golub and LeVeque 1983, "Algorithms for Computing the Sample Variance".
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from hasten.recipes.ocr.maps.compiled import kernel, parallel_kernel

Halves = npt.NDArray[np.uint16]
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

FLUSH = 64
"""Rows after which the lanes' sums are added up."""
_HALF, _ROUND, _ONE = np.uint32(16), np.uint32(0x7FFF), np.uint32(1)
_ZERO = np.float32(0)


@kernel
def wide(half: Any) -> Any:
    """A bfloat16 number as float32."""
    return np.uint32(np.uint32(half) << _HALF).view(np.float32)


@kernel
def narrow(value: Any) -> Any:
    """A float32 number as the nearest bfloat16 one, of two the even one."""
    bits = np.float32(value).view(np.uint32)
    return np.uint16(np.uint32(np.uint32(bits + _ROUND) + np.uint32(np.uint32(bits >> _HALF) & _ONE)) >> _HALF)


@kernel
def _add_row(x: Halves, shift: Floats, first: Floats, second: Floats) -> None:
    for i in range(len(x)):
        value = wide(x[i]) - shift[i]
        first[i] += value
        second[i] += value * value


@kernel
def _add_gradient_row(  # noqa: PLR0917  a kernel is called by position
    x: Halves, outer: Halves, out: Halves, shift: Floats, first: Floats, second: Floats
) -> None:
    for i in range(len(x)):
        gradient = _ZERO if wide(out[i]) <= _ZERO else wide(outer[i])
        first[i] += gradient
        second[i] += gradient * (wide(x[i]) - shift[i])


@kernel
def _apply_row(x: Halves, scale: Floats, level: Floats, out: Halves) -> None:
    for i in range(len(x)):
        value = wide(x[i]) * scale[i] + level[i]
        out[i] = narrow(_ZERO if value < _ZERO else value)  # noqa: FURB136  what is not a number stays so


@kernel
def _apply_beside_row(x: Halves, beside: Halves, scale: Floats, level: Floats, out: Halves) -> None:
    for i in range(len(x)):
        value = wide(x[i]) * scale[i] + level[i] + wide(beside[i])
        out[i] = narrow(_ZERO if value < _ZERO else value)  # noqa: FURB136


@kernel
def _mask_row(outer: Halves, out: Halves, masked: Halves) -> None:
    for i in range(len(outer)):
        masked[i] = np.uint16(0) if wide(out[i]) <= _ZERO else outer[i]


@kernel
def _back_row(  # noqa: PLR0917  a kernel is called by position
    x: Halves, outer: Halves, out: Halves, scale: Floats, slope: Floats, level: Floats, inner: Halves
) -> None:
    for i in range(len(x)):
        gradient = _ZERO if wide(out[i]) <= _ZERO else wide(outer[i])
        inner[i] = narrow(scale[i] * gradient + slope[i] * wide(x[i]) + level[i])


@kernel
def _flush(lanes: Floats, found: Doubles) -> None:
    """Add the lanes' sums, `[2, lanes]`, to those of their channels, `[2, channels]`, and begin anew."""
    channels = found.shape[1]
    for which in range(2):
        for at in range(0, lanes.shape[1], channels):
            for channel in range(channels):
                found[which, channel] += lanes[which, at + channel]
    lanes[:] = _ZERO


@kernel
def _lanes(values: Doubles, count: int) -> Floats:
    """The values of the channels over and over."""
    lanes = np.empty(count, np.float32)
    for at in range(0, count, len(values)):
        for channel in range(len(values)):
            lanes[at + channel] = values[channel]
    return lanes


@parallel_kernel
def sums(x: Halves, shift: Doubles, parts: int) -> Doubles:
    """Sum `x` less the shift, and its squares.

    Args:
        x: `[rows, lanes]`, a row being whole pixels.
        shift: `[channels]`, representable in float32.
        parts: Threads.

    Returns:
        `[2, channels]`.
    """
    lanes, found = _lanes(shift, x.shape[1]), np.zeros((parts, 2, len(shift)))
    for part in numba.prange(parts):
        own = np.zeros((2, x.shape[1]), np.float32)
        begin, end = part * len(x) // parts, (part + 1) * len(x) // parts
        for row in range(begin, end):
            _add_row(x[row], lanes, own[0], own[1])
            if (row - begin) % FLUSH == FLUSH - 1:
                _flush(own, found[part])
        _flush(own, found[part])
    both: Doubles = found.sum(0)
    return both


@parallel_kernel
def gradient_sums(x: Halves, outer: Halves, out: Halves, shift: Doubles, parts: int) -> Doubles:
    """Sum the gradient `outer` where `out` is positive, and that times `x` less the shift: `[2, channels]`."""
    lanes, found = _lanes(shift, x.shape[1]), np.zeros((parts, 2, len(shift)))
    for part in numba.prange(parts):
        own = np.zeros((2, x.shape[1]), np.float32)
        begin, end = part * len(x) // parts, (part + 1) * len(x) // parts
        for row in range(begin, end):
            _add_gradient_row(x[row], outer[row], out[row], lanes, own[0], own[1])
            if (row - begin) % FLUSH == FLUSH - 1:
                _flush(own, found[part])
        _flush(own, found[part])
    both: Doubles = found.sum(0)
    return both


@parallel_kernel
def apply(x: Halves, scale: Doubles, level: Doubles, out: Halves, parts: int) -> None:
    """Put the positive part of `scale x + level` into `out`."""
    scales, levels = _lanes(scale, x.shape[1]), _lanes(level, x.shape[1])
    for part in numba.prange(parts):
        for row in range(part * len(x) // parts, (part + 1) * len(x) // parts):
            _apply_row(x[row], scales, levels, out[row])


@parallel_kernel
def apply_beside(  # noqa: PLR0917  a kernel is called by position
    x: Halves, beside: Halves, scale: Doubles, level: Doubles, out: Halves, parts: int
) -> None:
    """Put the positive part of `scale x + level + beside` into `out`."""
    scales, levels = _lanes(scale, x.shape[1]), _lanes(level, x.shape[1])
    for part in numba.prange(parts):
        for row in range(part * len(x) // parts, (part + 1) * len(x) // parts):
            _apply_beside_row(x[row], beside[row], scales, levels, out[row])


@parallel_kernel
def mask(outer: Halves, out: Halves, masked: Halves, parts: int) -> None:
    """Put the gradient `outer` where `out` is positive into `masked`, and 0 elsewhere."""
    for part in numba.prange(parts):
        for row in range(part * len(out) // parts, (part + 1) * len(out) // parts):
            _mask_row(outer[row], out[row], masked[row])


@parallel_kernel
def back(  # noqa: PLR0917  a kernel is called by position
    x: Halves, outer: Halves, out: Halves, lines: Doubles, inner: Halves, parts: int
) -> None:
    """Put `lines[0] g + lines[1] x + lines[2]` into `inner`, where g is the gradient `outer` where `out` is positive."""
    scales, slopes, levels = _lanes(lines[0], x.shape[1]), _lanes(lines[1], x.shape[1]), _lanes(lines[2], x.shape[1])
    for part in numba.prange(parts):
        for row in range(part * len(x) // parts, (part + 1) * len(x) // parts):
            _back_row(x[row], outer[row], out[row], scales, slopes, levels, inner[row])
