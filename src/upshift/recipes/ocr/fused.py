"""The losses of `losses`, and their gradient, in two compiled passes over the pixels of a CPU.

As tensor operations they are some forty passes, each of which reads and writes whole maps: a good part of an update. The
mathematics is the same. The hardest negatives are found among the logits, with which their cross entropy rises. They are
sorted: NumPy sorts by vector instructions, and is slow to partition the even stretches that maps are made of.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from upshift.recipes.needed import compiled
from upshift.recipes.ocr.losses import (
    BINARY_WEIGHT,
    NEGATIVES_PER_POSITIVE,
    PROBABILITY_WEIGHT,
    STEEPNESS,
    THRESHOLD_WEIGHT,
    db_loss,
    probability_loss,
)

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

_EPS = 1e-6


def fused_db_loss(
    logits: torch.Tensor, shrink: torch.Tensor, shrink_mask: torch.Tensor, thresh: torch.Tensor, thresh_mask: torch.Tensor
) -> torch.Tensor:
    """The whole loss, a scalar: what `losses.db_loss` gives, by it on other devices than a CPU.

    Args:
        logits: Of probability and threshold, `[batch, 2, height, width]`.
        shrink: Where the shrunk texts are, `uint8 [batch, height, width]`.
        shrink_mask: Where that counts, `uint8`.
        thresh: The threshold map, `float32`.
        thresh_mask: Where that counts, `uint8`.

    Raises:
        MachineError: Numba is not installed.
    """
    if logits.device.type != "cpu":
        return db_loss(logits, shrink, shrink_mask, thresh, thresh_mask)
    loss: torch.Tensor = _Losses.apply(logits, shrink, shrink_mask, thresh, thresh_mask)  # type: ignore[no-untyped-call]
    return loss


def fused_probability_loss(logits: torch.Tensor, shrink: torch.Tensor, shrink_mask: torch.Tensor) -> torch.Tensor:
    """The loss of held-out pictures, a scalar without a gradient: what `losses.probability_loss` gives.

    Args:
        logits: Of the probability, `[batch, 1, height, width]`.
        shrink: Where the shrunk texts are, `uint8 [batch, height, width]`.
        shrink_mask: Where that counts, `uint8`.

    Raises:
        MachineError: Numba is not installed.
    """
    if logits.device.type != "cpu" or logits.requires_grad:
        return probability_loss(logits, shrink, shrink_mask)
    said, negatives = _flat(logits.float()), np.empty(shrink.numel(), dtype=np.float32)
    positive_loss, num_positive, num_negative = compiled(positives)(said, _flat(shrink), _flat(shrink_mask), negatives)
    hardest = _hardest(negatives[:num_negative], num_positive)
    loss = positive_loss + compiled(negative_loss)(hardest)
    return torch.tensor(PROBABILITY_WEIGHT * loss / (num_positive + len(hardest) + _EPS), dtype=torch.float32)


class _Losses(torch.autograd.Function):
    """Gives the loss, and keeps its gradient, which is made in the same pass."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, *targets: torch.Tensor) -> torch.Tensor:
        """Compute loss and gradient."""
        batch, _, height, width = logits.shape
        said = logits.detach().float().contiguous().view(batch, 2, height * width).numpy()
        truth, mask, thresh, thresh_mask = (target.contiguous().view(batch, height * width).numpy() for target in targets)
        gradient, steep = np.empty_like(said), np.empty(truth.shape, dtype=np.float32)
        negatives = np.empty(truth.size, dtype=np.float32)
        sums = compiled(first_pass)(said, truth, mask, thresh, thresh_mask, gradient, steep, negatives)
        positive_loss, num_positive, num_negative, away, num_border, overlap, found, real = sums
        hardest = _hardest(negatives[:num_negative], num_positive)
        both, counted, union = num_positive + len(hardest) + _EPS, max(num_border, 1.0), found + real + _EPS
        compiled(second_pass)(
            said,
            truth,
            mask,
            thresh,
            thresh_mask,
            gradient,
            steep,
            hardest[0] if len(hardest) else np.float32(np.inf),
            np.float32(PROBABILITY_WEIGHT / both),
            np.float32(THRESHOLD_WEIGHT / counted),
            np.float32(BINARY_WEIGHT * 2 * overlap / union**2),
            np.float32(BINARY_WEIGHT * 2 / union),
        )
        ctx.gradient = torch.from_numpy(gradient).view(logits.shape).to(logits.dtype)
        loss = (
            PROBABILITY_WEIGHT * (positive_loss + compiled(negative_loss)(hardest)) / both
            + THRESHOLD_WEIGHT * away / counted
            + BINARY_WEIGHT * (1 - 2 * overlap / union)
        )
        return torch.tensor(loss, dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, *outer: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Scale the gradient that is there."""
        return ctx.gradient * outer[0], None, None, None, None


def warm() -> None:
    """Compile the passes, or load them from disk.

    Raises:
        MachineError: Numba is not installed.
    """
    logits = torch.zeros(1, 2, 4, 4, requires_grad=True)
    truth = torch.zeros(1, 4, 4, dtype=torch.uint8)
    truth[0, 0, 0] = 1
    mask = torch.ones(1, 4, 4, dtype=torch.uint8)
    fused_db_loss(logits, truth, mask, torch.zeros(1, 4, 4), mask)
    fused_probability_loss(logits.detach()[:, :1], truth, mask)


def _flat(values: torch.Tensor) -> npt.NDArray[Any]:
    flat: npt.NDArray[Any] = values.detach().contiguous().view(-1).numpy()
    return flat


def _hardest(negatives: Floats, num_positive: int) -> Floats:
    """The logits of the negatives that count, rising."""
    wanted = min(len(negatives), int(num_positive * NEGATIVES_PER_POSITIVE))
    return np.sort(negatives)[len(negatives) - wanted :]


def positives(said: Floats, truth: Bytes, mask: Bytes, negatives: Floats) -> tuple[float, int, int]:
    """The cross entropy of all positive pixels, how many they are, and how many negatives; their logits are gathered."""
    loss, num_positive, num_negative = 0.0, 0, 0
    for i in range(len(said)):
        if mask[i]:
            x = said[i]
            if truth[i]:
                num_positive += 1
                loss += math.log1p(math.exp(-abs(x))) + max(-x, np.float32(0))
            else:
                negatives[num_negative] = x
                num_negative += 1
    return loss, num_positive, num_negative


def negative_loss(hardest: Floats) -> float:
    """The cross entropy of the negatives that count."""
    loss = 0.0
    for x in hardest:
        loss += math.log1p(math.exp(-abs(x))) + max(x, np.float32(0))
    return loss


def first_pass(  # noqa: PLR0917  a kernel: Numba takes no keywords
    said: Floats,
    truth: Bytes,
    mask: Bytes,
    thresh: Floats,
    thresh_mask: Bytes,
    gradient: Floats,
    steep: Floats,
    negatives: Floats,
) -> tuple[float, int, int, float, float, float, float, float]:
    """All sums over the pixels; leaves the two probabilities in `gradient` and the slope of the binary map in `steep`."""
    loss, num_positive, num_negative, away, num_border = 0.0, 0, 0, 0.0, 0.0
    overlap, found, real = 0.0, 0.0, 0.0
    one: Any = np.float32(1)
    k = np.float32(STEEPNESS)
    for row in range(said.shape[0]):
        for i in range(said.shape[2]):
            x = said[row, 0, i]
            e = math.exp(-abs(x))
            p = one / (one + e) if x >= 0 else e / (one + e)
            t = one / (one + math.exp(-said[row, 1, i]))
            b = one / (one + math.exp(-k * (p - t)))
            gradient[row, 0, i], gradient[row, 1, i] = p, t
            steep[row, i] = k * b * (one - b)
            if mask[row, i]:
                found += b
                if truth[row, i]:
                    num_positive += 1
                    real += 1.0
                    overlap += b
                    loss += math.log1p(e) + max(-x, np.float32(0))
                else:
                    negatives[num_negative] = x
                    num_negative += 1
            if thresh_mask[row, i]:
                away += abs(t - thresh[row, i])
                num_border += 1.0
    return loss, num_positive, num_negative, away, num_border, overlap, found, real


def second_pass(  # noqa: PLR0917  a kernel: Numba takes no keywords
    said: Floats,
    truth: Bytes,
    mask: Bytes,
    thresh: Floats,
    thresh_mask: Bytes,
    gradient: Floats,
    steep: Floats,
    least: np.float32,
    of_probability: np.float32,
    of_threshold: np.float32,
    of_binary: np.float32,
    of_overlap: np.float32,
) -> None:
    """Put the gradient in the place of the probabilities."""
    one, zero = np.float32(1), np.float32(0)
    for row in range(said.shape[0]):
        for i in range(said.shape[2]):
            p, t = gradient[row, 0, i], gradient[row, 1, i]
            to_p, to_t = zero, zero
            if mask[row, i]:
                slope = steep[row, i] * (of_binary - of_overlap * truth[row, i])
                to_p = slope * p * (one - p)
                to_t = -slope
                if truth[row, i]:
                    to_p += of_probability * (p - one)
                elif said[row, 0, i] >= least:
                    to_p += of_probability * p
            if thresh_mask[row, i]:
                if t > thresh[row, i]:
                    to_t += of_threshold
                elif t < thresh[row, i]:
                    to_t -= of_threshold
            gradient[row, 0, i] = to_p
            gradient[row, 1, i] = to_t * t * (one - t)
