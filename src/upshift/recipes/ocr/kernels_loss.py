"""The passes of `fused` over the pixels of a CPU, in blocks that stay in its nearest cache, in vector instructions.

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

from upshift.recipes.ocr.maps.compiled import kernel

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
def first_pass(  # noqa: PLR0917  a kernel is called by position
    said: Floats,
    truth: Bytes,
    mask: Bytes,
    thresh: Floats,
    thresh_mask: Bytes,
    steepness: Any,
    gradient: Floats,
    steep: Floats,
    negatives: Floats,
    sums: Doubles,
) -> None:
    """Take all sums over the pixels.

    Args:
        said: Logits of probability and threshold, `[pictures, 2, pixels]`.
        truth: Where the shrunk texts are, 0 or 1, `[pictures, pixels]`; the next three are as large.
        mask: Where that counts.
        thresh: The threshold map.
        thresh_mask: Where that counts.
        steepness: Of the differentiable binarisation.
        gradient: Gets both probabilities, as large as `said`.
        steep: Gets the slope of the binary map, `[pictures, pixels]`.
        negatives: Gets the logits of negative pixels, and minus infinity for any other, `[pictures, pixels]`.
        sums: Gets the cross entropy of positive pixels, how many they are, the absolute error of the threshold, how many
            pixels it counts in, what the binary map has in common with the truth, has, and should have, and how many
            pixels count at all, `[8]`.
    """
    blocks = 0
    small, binary, loss = np.empty(LANES, np.float32), np.empty(LANES, np.float32), np.empty(LANES, np.float32)
    powers, lanes = np.empty(LANES, np.int32), np.zeros((8, LANES), np.float32)
    for row in range(said.shape[0]):
        for at in range(0, said.shape[2], LANES):
            count = min(LANES, said.shape[2] - at)
            x, y = said[row, 0, at : at + count], said[row, 1, at : at + count]
            p, t = gradient[row, 0, at : at + count], gradient[row, 1, at : at + count]
            slope, aim = steep[row, at : at + count], thresh[row, at : at + count]
            real, counts, border = truth[row, at : at + count], mask[row, at : at + count], thresh_mask[row, at : at + count]
            exponential(x, count, small, powers)
            sigmoid(x, small, count, p)
            softplus(x, small, count, -_ONE, loss)
            exponential(y, count, small, powers)
            sigmoid(y, small, count, t)
            apart(p, t, count, steepness, slope)
            exponential(slope, count, small, powers)
            sigmoid(slope, small, count, binary)
            slope_of(binary, count, steepness, slope)
            sum_positives(loss, real, counts, count, lanes)
            sum_errors(t, aim, border, count, lanes[2:])
            sum_overlaps(binary, real, counts, count, lanes[4:])
            keep_negatives(x, real, counts, count, negatives[row, at : at + count])
            blocks += 1
            if blocks % FLUSH == 0:
                flush(lanes, sums)
    flush(lanes, sums)


@kernel
def second_pass(  # noqa: PLR0917  a kernel is called by position
    said: Floats,
    truth: Bytes,
    mask: Bytes,
    thresh: Floats,
    thresh_mask: Bytes,
    gradient: Floats,
    steep: Floats,
    least: Any,
    of_probability: Any,
    of_threshold: Any,
    of_binary: Any,
    of_overlap: Any,
) -> None:
    """Put the gradient in the place of the probabilities; the arrays are those of `first_pass`.

    Args:
        said: As there, and so on.
        truth: .
        mask: .
        thresh: .
        thresh_mask: .
        gradient: Both probabilities; gets the gradient.
        steep: The slope of the binary map.
        least: The least logit of the negatives that count.
        of_probability: What the cross entropy of a pixel weighs.
        of_threshold: What the threshold of a pixel weighs.
        of_binary: What a pixel of the binary map weighs, text or not.
        of_overlap: What it weighs where it is text.
    """
    to_p, to_t, nothing = np.empty(LANES, np.float32), np.empty(LANES, np.float32), np.zeros(LANES, np.float32)
    for row in range(said.shape[0]):
        for at in range(0, said.shape[2], LANES):
            count = min(LANES, said.shape[2] - at)
            x, aim, slope = said[row, 0, at : at + count], thresh[row, at : at + count], steep[row, at : at + count]
            p, t = gradient[row, 0, at : at + count], gradient[row, 1, at : at + count]
            real, counts, border = truth[row, at : at + count], mask[row, at : at + count], thresh_mask[row, at : at + count]
            binary_gradient(real, counts, slope, count, of_binary, of_overlap, to_t)
            probability_gradient(x, p, real, counts, count, least, of_probability, to_p)
            through_sigmoid(to_t, to_p, count, p)
            threshold_gradient(t, aim, border, count, of_threshold, to_t)
            through_sigmoid(to_t, nothing, count, t)


@kernel
def positives(said: Floats, truth: Bytes, mask: Bytes, negatives: Floats, sums: Doubles) -> None:
    """Take the cross entropy of positive pixels, how many they are, and how many pixels count, as `first_pass` does.

    Args:
        said: Logits of the probability, `[pixels]`; the next three are as large.
        truth: Where the shrunk texts are, 0 or 1.
        mask: Where that counts.
        negatives: As there.
        sums: Gets them, `[3]`.
    """
    small, loss = np.empty(LANES, np.float32), np.empty(LANES, np.float32)
    powers, lanes = np.empty(LANES, np.int32), np.zeros((3, LANES), np.float32)
    for block in range((len(said) + LANES - 1) // LANES):
        at = block * LANES
        count = min(LANES, len(said) - at)
        x, real, counts = said[at : at + count], truth[at : at + count], mask[at : at + count]
        if real.any():
            exponential(x, count, small, powers)
            softplus(x, small, count, -_ONE, loss)
            sum_positives(loss, real, counts, count, lanes)
        sum_pixels(counts, count, lanes[2])
        keep_negatives(x, real, counts, count, negatives[at : at + count])
        if block % FLUSH == 0:
            flush(lanes, sums)
    flush(lanes, sums)


@kernel
def sum_above(x: Floats, loss: Floats, least: Any, count: int, lanes: Floats) -> None:
    """Add up the loss of what is not at most `least`, and them, lane by lane, `[2, LANES]`."""
    total, number = lanes[0], lanes[1]
    for i in range(count):
        above = _ZERO if x[i] <= least else _ONE
        total[i] += above * loss[i]
        number[i] += above


@kernel
def negative_loss(negatives: Floats, wanted: int, least: Any) -> float:
    """The cross entropy of the negatives that count: of equal ones at the least logit, as many as are wanted."""
    if wanted == 0:
        return 0.0
    sums = np.zeros(2, np.float64)
    small, loss = np.empty(LANES, np.float32), np.empty(LANES, np.float32)
    powers, lanes = np.empty(LANES, np.int32), np.zeros((2, LANES), np.float32)
    edge = np.full(1, least, np.float32)
    exponential(edge, 1, small, powers)
    softplus(edge, small, 1, _ONE, loss)
    at_least = float(loss[0])
    for block in range((len(negatives) + LANES - 1) // LANES):
        at = block * LANES
        count = min(LANES, len(negatives) - at)
        x = negatives[at : at + count]
        exponential(x, count, small, powers)
        softplus(x, small, count, _ONE, loss)
        sum_above(x, loss, least, count, lanes)
        if block % FLUSH == 0:
            flush(lanes, sums)
    flush(lanes, sums)
    return float(sums[0] + (wanted - sums[1]) * at_least)
