"""What `kernels_loss` does with a block of pixels that stays in the nearest cache, in vector instructions.

A compiler makes vector instructions of a loop that calls nothing, branches nowhere and touches few arrays, and of one alone
in its function more readily. So the exponential is written out, each loop is a kernel, and what does not count is multiplied
by 0. Sums are taken lane by lane, in float32 over a few thousand pixels and in float64 beyond: none depends on how the
compiler orders it.

Source of the exponential: Cody and Waite 1980, "Software Manual for the Elementary Functions" (the argument less a multiple
of log 2, which is taken in two parts), with the Taylor polynomial of degree 7; of the logarithm: log(1 + e) is
2 artanh(e / (2 + e)). Both are right to a few units of the last place of float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hasten.recipes.ocr.maps.compiled import kernel

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]

LANES = 512
"""Pixels of a block."""
FLUSH = 16
"""Blocks after which the lanes' sums are added up."""
_ONE, _ZERO, _TWO, _HALF, _NONE = np.float32(1), np.float32(0), np.float32(2), np.float32(0.5), np.float32(-np.inf)
_PER_LOG_2, _LOG_2_HIGH, _LOG_2_LOW = np.float32(1.44269504), np.float32(0.693359375), np.float32(-2.12194440e-4)
_LEAST = np.float32(-87.0)
"""Below it the exponential is taken for this one, 1.6e-38."""
_E2, _E3, _E4, _E5, _E6, _E7 = (np.float32(1 / value) for value in (2, 6, 24, 120, 720, 5040))
_L3, _L5, _L7, _L9, _L11, _L13 = (np.float32(1 / value) for value in (3, 5, 7, 9, 11, 13))
_BIAS, _MANTISSA = np.int32(127), np.int32(23)


@kernel
def exponential(x: Floats, count: int, out: Floats, powers: Ints) -> None:
    """Put exp(-|x|) of the first `count` numbers into `out`; `powers` is room for as many."""
    floats = powers.view(np.float32)
    for i in range(count):
        at = -abs(x[i])
        at = _LEAST if at < _LEAST else at  # noqa: FURB136  what is not a number stays so
        whole = np.floor(at * _PER_LOG_2 + _HALF)
        rest = at - whole * _LOG_2_HIGH - whole * _LOG_2_LOW
        high = _E4 + rest * (_E5 + rest * (_E6 + rest * _E7))
        out[i] = _ONE + rest * (_ONE + rest * (_E2 + rest * (_E3 + rest * high)))
        powers[i] = (np.int32(whole) + _BIAS) << _MANTISSA
    for i in range(count):
        out[i] *= floats[i]


@kernel
def sigmoid(x: Floats, small: Floats, count: int, out: Floats) -> None:
    """Put 1 / (1 + exp(-x)) into `out`; `small` is exp(-|x|)."""
    for i in range(count):
        out[i] = (_ONE if x[i] >= _ZERO else small[i]) / (_ONE + small[i])


@kernel
def softplus(x: Floats, small: Floats, count: int, sign: Any, out: Floats) -> None:
    """Put log(1 + exp(sign x)) into `out`; `small` is exp(-|x|)."""
    for i in range(count):
        s = small[i] / (_TWO + small[i])
        q = s * s
        series = _ONE + q * (_L3 + q * (_L5 + q * (_L7 + q * (_L9 + q * (_L11 + q * _L13)))))
        out[i] = _TWO * s * series + max(sign * x[i], _ZERO)


@kernel
def flush(lanes: Floats, sums: Doubles) -> None:
    """Add the lanes' sums, `[sums, LANES]`, to those of before, and begin anew."""
    for which in range(len(sums)):
        total = 0.0
        for i in range(LANES):
            total += lanes[which, i]
            lanes[which, i] = _ZERO
        sums[which] += total


@kernel
def keep_negatives(said: Floats, truth: Bytes, mask: Bytes, count: int, out: Floats) -> None:
    """Put the logits of negative pixels into `out`, and minus infinity for any other."""
    for i in range(count):
        out[i] = said[i] if (mask[i] != 0) & (truth[i] == 0) else _NONE


@kernel
def sum_positives(loss: Floats, truth: Bytes, mask: Bytes, count: int, lanes: Floats) -> None:
    """Add up the loss of positive pixels, and them, lane by lane, `[2, LANES]`."""
    total, number = lanes[0], lanes[1]
    for i in range(count):
        both = np.float32(truth[i] * mask[i])
        total[i] += both * loss[i]
        number[i] += both


@kernel
def sum_errors(said: Floats, aim: Floats, mask: Bytes, count: int, lanes: Floats) -> None:
    """Add up the absolute error of pixels that count, and them, lane by lane, `[2, LANES]`."""
    total, number = lanes[0], lanes[1]
    for i in range(count):
        weight = np.float32(mask[i])
        total[i] += weight * abs(said[i] - aim[i])
        number[i] += weight


@kernel
def sum_pixels(mask: Bytes, count: int, number: Floats) -> None:
    """Add up the pixels that count, lane by lane."""
    for i in range(count):
        number[i] += np.float32(mask[i])


@kernel
def sum_overlaps(binary: Floats, truth: Bytes, mask: Bytes, count: int, lanes: Floats) -> None:
    """Add up what the binary map has in common with the truth, has, and should have, and pixels, lane by lane."""
    overlap, found, real, pixels = lanes[0], lanes[1], lanes[2], lanes[3]
    for i in range(count):
        weight, is_text = np.float32(mask[i]), np.float32(truth[i])
        overlap[i] += weight * is_text * binary[i]
        found[i] += weight * binary[i]
        real[i] += weight * is_text
        pixels[i] += weight


@kernel
def binary_gradient(  # noqa: PLR0917  a kernel is called by position
    truth: Bytes, mask: Bytes, steep: Floats, count: int, of_binary: Any, of_overlap: Any, out: Floats
) -> None:
    """The gradient of the overlap by the difference of probability and threshold."""
    for i in range(count):
        out[i] = np.float32(mask[i]) * steep[i] * (of_binary - of_overlap * np.float32(truth[i]))


@kernel
def probability_gradient(  # noqa: PLR0917  a kernel is called by position
    x: Floats, p: Floats, truth: Bytes, mask: Bytes, count: int, least: Any, weight: Any, out: Floats
) -> None:
    """The gradient of the cross entropy by its logit, where the pixel is positive or a negative that counts."""
    for i in range(count):
        is_text = np.float32(truth[i])
        hard = _ONE if x[i] >= least else _ZERO
        out[i] = np.float32(mask[i]) * weight * (is_text * (p[i] - _ONE) + (_ONE - is_text) * hard * p[i])


@kernel
def threshold_gradient(  # noqa: PLR0917  a kernel is called by position
    t: Floats, aim: Floats, mask: Bytes, count: int, weight: Any, out: Floats
) -> None:
    """From what is in `out`, the gradient of the overlap, that of the overlap and the absolute error by the threshold."""
    for i in range(count):
        above = (_ONE if t[i] > aim[i] else _ZERO) - (_ONE if t[i] < aim[i] else _ZERO)
        out[i] = np.float32(mask[i]) * weight * above - out[i]


@kernel
def through_sigmoid(outer: Floats, inner: Floats, count: int, out: Floats) -> None:
    """Put `inner` + `outer` times the slope of the sigmoid in the place of its value `out`."""
    for i in range(count):
        out[i] = inner[i] + outer[i] * out[i] * (_ONE - out[i])


@kernel
def apart(p: Floats, t: Floats, count: int, steepness: Any, out: Floats) -> None:
    """Put the logit of the binary map into `out`."""
    for i in range(count):
        out[i] = steepness * (p[i] - t[i])


@kernel
def slope_of(binary: Floats, count: int, steepness: Any, out: Floats) -> None:
    """Put the slope of the binary map into `out`."""
    for i in range(count):
        out[i] = steepness * binary[i] * (_ONE - binary[i])


@kernel
def sum_above(x: Floats, loss: Floats, least: Any, count: int, lanes: Floats) -> None:
    """Add up the loss of what is not at most `least`, and them, lane by lane, `[2, LANES]`."""
    total, number = lanes[0], lanes[1]
    for i in range(count):
        above = _ZERO if x[i] <= least else _ONE
        total[i] += above * loss[i]
        number[i] += above
