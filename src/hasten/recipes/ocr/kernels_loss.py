"""The passes of `fused` over the pixels of a CPU, block by block, picture by picture.

What is done with a block: `kernels_blocks`.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from hasten.recipes.ocr.kernels_blocks import (
    FLUSH,
    LANES,
    apart,
    binary_gradient,
    exponential,
    flush,
    keep_negatives,
    probability_gradient,
    sigmoid,
    slope_of,
    softplus,
    sum_above,
    sum_errors,
    sum_overlaps,
    sum_pixels,
    sum_positives,
    threshold_gradient,
    through_sigmoid,
)
from hasten.recipes.ocr.maps.compiled import kernel, parallel_kernel

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]

_ONE = np.float32(1)


@kernel
def first_row(  # noqa: PLR0917  a kernel is called by position
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
    """`first_pass` for one picture."""
    small, binary, loss = np.empty(LANES, np.float32), np.empty(LANES, np.float32), np.empty(LANES, np.float32)
    powers, lanes = np.empty(LANES, np.int32), np.zeros((8, LANES), np.float32)
    for block in range((said.shape[1] + LANES - 1) // LANES):
        at = block * LANES
        count = min(LANES, said.shape[1] - at)
        x, y = said[0, at : at + count], said[1, at : at + count]
        p, t = gradient[0, at : at + count], gradient[1, at : at + count]
        slope, aim = steep[at : at + count], thresh[at : at + count]
        real, counts, border = truth[at : at + count], mask[at : at + count], thresh_mask[at : at + count]
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
        keep_negatives(x, real, counts, count, negatives[at : at + count])
        if block % FLUSH == FLUSH - 1:
            flush(lanes, sums)
    flush(lanes, sums)


@kernel
def second_row(  # noqa: PLR0917  a kernel is called by position
    said: Floats,
    truth: Bytes,
    mask: Bytes,
    thresh: Floats,
    thresh_mask: Bytes,
    gradient: Floats,
    steep: Floats,
    least: Any,
    weights: Floats,
) -> None:
    """`second_pass` for one picture."""
    of_probability, of_threshold, of_binary, of_overlap = weights[0], weights[1], weights[2], weights[3]
    to_p, to_t, nothing = np.empty(LANES, np.float32), np.empty(LANES, np.float32), np.zeros(LANES, np.float32)
    for at in range(0, said.shape[1], LANES):
        count = min(LANES, said.shape[1] - at)
        x, aim, slope = said[0, at : at + count], thresh[at : at + count], steep[at : at + count]
        p, t = gradient[0, at : at + count], gradient[1, at : at + count]
        real, counts, border = truth[at : at + count], mask[at : at + count], thresh_mask[at : at + count]
        binary_gradient(real, counts, slope, count, of_binary, of_overlap, to_t)
        probability_gradient(x, p, real, counts, count, least, of_probability, to_p)
        through_sigmoid(to_t, to_p, count, p)
        threshold_gradient(t, aim, border, count, of_threshold, to_t)
        through_sigmoid(to_t, nothing, count, t)


@parallel_kernel
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
    """Take all sums over the pixels, a picture a thread.

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
        sums: Of each picture: gets the cross entropy of positive pixels, how many they are, the absolute error of the
            threshold, how many pixels it counts in, what the binary map has in common with the truth, has, and should have,
            and how many pixels count at all, `[pictures, 8]`.
    """
    for row in numba.prange(len(said)):
        maps = truth[row], mask[row], thresh[row], thresh_mask[row]
        first_row(said[row], *maps, steepness, gradient[row], steep[row], negatives[row], sums[row])


@parallel_kernel
def second_pass(  # noqa: PLR0917  a kernel is called by position
    said: Floats,
    truth: Bytes,
    mask: Bytes,
    thresh: Floats,
    thresh_mask: Bytes,
    gradient: Floats,
    steep: Floats,
    least: Any,
    weights: Floats,
) -> None:
    """Put the gradient in the place of the probabilities, a picture a thread; the arrays are those of `first_pass`.

    Args:
        said: As there, and so on.
        truth: .
        mask: .
        thresh: .
        thresh_mask: .
        gradient: Both probabilities; gets the gradient.
        steep: The slope of the binary map.
        least: The least logit of the negatives that count.
        weights: What the cross entropy of a pixel weighs, the threshold of one, one of the binary map, text or not, and what
            more that weighs where it is text, `[4]`.
    """
    for row in numba.prange(len(said)):
        maps = truth[row], mask[row], thresh[row], thresh_mask[row]
        second_row(said[row], *maps, gradient[row], steep[row], least, weights)


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
