"""The loss of held-out pictures over bfloat16 logits, by counting: there are no more than 65,536 different ones.

Pixels are counted by the bits of their logit, text and background apart, in threads. All that the loss asks is known from
these numbers: how many pixels are text, which background is the hardest, and the sum of the cross entropies, which is taken
once for each logit in float64.
"""

from __future__ import annotations

import math

import numba
import numpy as np
import numpy.typing as npt

from hasten.recipes.ocr.maps.compiled import kernel, parallel_kernel

Halves = npt.NDArray[np.uint16]
Ints = npt.NDArray[np.int64]
Counts = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]

_VALUES, _SIGN, _NOT_NUMBERS = 65536, 0x8000, 0x7F


@kernel
def _count_row(said: Halves, truth: Bytes, mask: Bytes, even: Counts, odd: Counts) -> None:
    """Neighbours are often equal, and a number cannot be raised before it was written: two tables take turns."""
    for i in range(len(said) // 2):
        even[np.int64(truth[2 * i] != 0), said[2 * i]] += np.int32(mask[2 * i])
        odd[np.int64(truth[2 * i + 1] != 0), said[2 * i + 1]] += np.int32(mask[2 * i + 1])
    if len(said) % 2:
        even[np.int64(truth[-1] != 0), said[-1]] += np.int32(mask[-1])


@parallel_kernel
def count_logits(said: Halves, truth: Bytes, mask: Bytes, parts: int) -> Ints:
    """How many pixels have each logit.

    Args:
        said: Logits of the probability, bfloat16, `[rows, pixels]`; the others are as large.
        truth: Where the shrunk texts are, 0 or 1.
        mask: Where that counts, 0 or 1.
        parts: Threads.

    Returns:
        Of background, and of text, `[2, 65536]`.
    """
    found = np.zeros((parts, 2, 2, _VALUES), np.int32)
    for part in numba.prange(parts):
        for row in range(part * len(said) // parts, (part + 1) * len(said) // parts):
            _count_row(said[row], truth[row], mask[row], found[part, 0], found[part, 1])
    counts: Ints = found.reshape(2 * parts, 2, _VALUES).sum(0)
    return counts


@kernel
def _value(bits: int) -> float:
    one = np.empty(1, np.uint32)
    one[0] = np.uint32(bits) << np.uint32(16)
    return float(one.view(np.float32)[0])


@kernel
def _from_the_top(at: int) -> int:
    """The bits of all bfloat16 numbers from the highest down, those first that are none."""
    if at < _NOT_NUMBERS:
        return _VALUES - 1 - at  # those with a sign
    at -= _NOT_NUMBERS
    return _SIGN - 1 - at if at < _SIGN else at  # without a sign downwards, with one away from 0


@kernel
def _entropy(logit: float) -> float:
    """The cross entropy of background with such a logit, or of text with its opposite."""
    return logit if math.isnan(logit) else max(logit, 0.0) + math.log1p(math.exp(-abs(logit)))


@kernel
def text_loss(counts: Ints) -> float:
    """The sum of the cross entropies of text; `counts` is `[65536]`."""
    loss = 0.0
    for bits in range(_VALUES):
        if counts[bits]:
            loss += counts[bits] * _entropy(-_value(bits))
    return loss


@kernel
def hardest_loss(counts: Ints, wanted: int) -> float:
    """The sum of the cross entropies of the `wanted` pixels with the highest logits; what is not a number is the highest.

    Args:
        counts: `[65536]`.
        wanted: No more than there are.
    """
    loss, left, at = 0.0, wanted, 0
    while left:
        bits = _from_the_top(at)
        taken = min(counts[bits], left)
        if taken:
            loss += taken * _entropy(_value(bits))
            left -= taken
        at += 1
    return loss
