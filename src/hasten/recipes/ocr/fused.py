"""The losses of `losses`, and their gradient, in two compiled passes over the pixels of a CPU.

As tensor operations they are some forty passes, each of which reads and writes whole maps: a good part of an update. The
mathematics is the same. The hardest negatives are found among the logits, with which their cross entropy rises: what is
wanted is the least of them, and that is found by counting, in less time than sorting or partitioning takes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from hasten.recipes.needed import needed
from hasten.recipes.ocr.losses import (
    BINARY_WEIGHT,
    NEGATIVES_PER_POSITIVE,
    PROBABILITY_WEIGHT,
    STEEPNESS,
    THRESHOLD_WEIGHT,
    db_loss,
    probability_loss,
)
from hasten.recipes.ocr.threads import kernel_threads, shares_threads

Floats = npt.NDArray[np.float32]

_KERNELS = f"{__package__}.kernels_loss"
_SELECTION = f"{__package__}.kernels_select"
_COUNTS = f"{__package__}.kernels_counts"
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

    Of bfloat16 logits there are so few different ones that it is enough to count them.

    Args:
        logits: Of the probability, `[batch, 1, height, width]`.
        shrink: Where the shrunk texts are, `uint8 [batch, height, width]`.
        shrink_mask: Where that counts, `uint8`.

    Raises:
        MachineError: Numba is not installed.
    """
    if logits.device.type != "cpu" or logits.requires_grad:
        return probability_loss(logits, shrink, shrink_mask)
    if logits.dtype is torch.bfloat16:
        return _counted_loss(logits, shrink, shrink_mask)
    kernels = needed(_KERNELS)
    negatives, sums = np.empty(shrink.numel(), dtype=np.float32), np.zeros(3)
    kernels.positives(_flat(logits.float()), _flat(shrink), _flat(shrink_mask), negatives, sums)
    positive_loss, num_positive, num_pixels = float(sums[0]), round(sums[1]), round(sums[2])
    wanted, least = _hardest(negatives, num_positive, num_pixels - num_positive)
    loss = positive_loss + kernels.negative_loss(negatives, wanted, least)
    return torch.tensor(PROBABILITY_WEIGHT * loss / (num_positive + wanted + _EPS), dtype=torch.float32)


def _counted_loss(logits: torch.Tensor, shrink: torch.Tensor, shrink_mask: torch.Tensor) -> torch.Tensor:
    kernels, width = needed(_COUNTS), logits.shape[-1]
    said, truth, mask = (part.detach().contiguous().view(-1, width) for part in (logits, shrink, shrink_mask))
    parts = kernel_threads() if shares_threads() else 1
    background, text = kernels.count_logits(said.view(torch.uint16).numpy(), truth.numpy(), mask.numpy(), parts)
    num_positive, num_negative = int(text.sum()), int(background.sum())
    wanted = min(num_negative, int(num_positive * NEGATIVES_PER_POSITIVE))
    loss = kernels.text_loss(text) + kernels.hardest_loss(background, wanted)
    return torch.tensor(PROBABILITY_WEIGHT * loss / (num_positive + wanted + _EPS), dtype=torch.float32)


class _Losses(torch.autograd.Function):
    """Gives the loss, and keeps its gradient, which is made in the same pass."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, *targets: torch.Tensor) -> torch.Tensor:
        """Compute loss and gradient."""
        batch, _, height, width = logits.shape
        said = logits.detach().float().contiguous().view(batch, 2, height * width).numpy()
        truth, mask, thresh, thresh_mask = (target.contiguous().view(batch, height * width).numpy() for target in targets)
        gradient, steep = np.empty_like(said), np.empty(truth.shape, dtype=np.float32)
        negatives, sums = np.empty(truth.shape, dtype=np.float32), np.zeros((batch, 8))
        kernels, maps = needed(_KERNELS), (truth, mask, thresh, thresh_mask)
        threads = batch > 1 and shares_threads() and kernel_threads() > 1
        read, written, steepness = (said, *maps), (gradient, steep, negatives, sums), np.float32(STEEPNESS)
        if threads:
            kernels.first_pass(*read, steepness, *written)
        else:
            for row in range(batch):
                kernels.first_row(*(part[row] for part in read), steepness, *(part[row] for part in written))
        positive_loss, _, away, num_border, overlap, found, real, _ = (float(value) for value in sums.sum(0))
        num_positive, num_pixels = (round(sums[:, at].sum()) for at in (1, 7))
        wanted, least = _hardest(negatives.reshape(-1), num_positive, num_pixels - num_positive)
        both, counted, union = num_positive + wanted + _EPS, max(num_border, 1.0), found + real + _EPS
        of_binary, of_overlap = BINARY_WEIGHT * 2 * overlap / union**2, BINARY_WEIGHT * 2 / union
        weights = np.array([PROBABILITY_WEIGHT / both, THRESHOLD_WEIGHT / counted, of_binary, of_overlap], dtype=np.float32)
        if threads:
            kernels.second_pass(*read, gradient, steep, least, weights)
        else:
            for row in range(batch):
                kernels.second_row(*(part[row] for part in (*read, gradient, steep)), least, weights)
        ctx.gradient = torch.from_numpy(gradient).view(logits.shape).to(logits.dtype)
        loss = (
            PROBABILITY_WEIGHT * (positive_loss + kernels.negative_loss(negatives.reshape(-1), wanted, least)) / both
            + THRESHOLD_WEIGHT * away / counted
            + BINARY_WEIGHT * (1 - 2 * overlap / union)
        )
        return torch.tensor(loss, dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, *outer: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Scale the gradient that is there."""
        gradient = ctx.gradient if outer[0] == 1 else ctx.gradient * outer[0]
        return gradient, None, None, None, None


def warm() -> None:
    """Compile the passes, or load them from disk.

    Raises:
        MachineError: Numba is not installed.
    """
    for batch in (2, 1):  # in threads, and not
        logits = torch.zeros(batch, 2, 4, 4, requires_grad=True)
        truth = torch.zeros(batch, 4, 4, dtype=torch.uint8)
        truth[0, 0, 0] = 1
        mask = torch.ones(batch, 4, 4, dtype=torch.uint8)
        fused_db_loss(logits, truth, mask, torch.zeros(batch, 4, 4), mask)
    for dtype in (torch.float32, torch.bfloat16):
        fused_probability_loss(logits.detach()[:, :1].to(dtype), truth, mask)


def _flat(values: torch.Tensor) -> npt.NDArray[Any]:
    flat: npt.NDArray[Any] = values.detach().contiguous().view(-1).numpy()
    return flat


def _hardest(negatives: Floats, num_positive: int, num_negative: int) -> tuple[int, np.float32]:
    """How many negatives count, and the least logit of them; `negatives` has others, of minus infinity, as well."""
    wanted = min(num_negative, int(num_positive * NEGATIVES_PER_POSITIVE))
    if not wanted:
        return 0, np.float32(np.inf)
    return wanted, np.float32(needed(_SELECTION).kth_largest(negatives, wanted))
