"""The three losses of DBNet, on logits, in float32.

Source: Liao et al. 2020, section 3.5. The weights 5, 10 and 1 are those of the code published with the paper (its text says
1, 10 and 1).
"""

from __future__ import annotations

import torch
from torch.nn import functional as F  # noqa: N812  the name everybody uses

STEEPNESS = 50.0
"""k of the differentiable binarization (equation 2)."""
NEGATIVES_PER_POSITIVE = 3.0
PROBABILITY_WEIGHT, THRESHOLD_WEIGHT, BINARY_WEIGHT = 5.0, 10.0, 1.0
_EPS = 1e-6


def db_loss(
    logits: torch.Tensor,
    shrink: torch.Tensor,
    shrink_mask: torch.Tensor,
    thresh: torch.Tensor,
    thresh_mask: torch.Tensor,
) -> torch.Tensor:
    """Compute the total loss, a scalar.

    Args:
        logits: Logits of probability and threshold, `[batch, 2, height, width]`.
        shrink: 1 inside shrunk texts, else 0, `[batch, height, width]`.
        shrink_mask: 1 where `shrink` counts, else 0.
        thresh: The threshold map.
        thresh_mask: 1 where `thresh` counts, else 0.
    """
    logits = logits.float()
    truth, mask = shrink.float(), shrink_mask.float()
    probability, threshold = torch.sigmoid(logits[:, 0]), torch.sigmoid(logits[:, 1])
    binary = torch.sigmoid(STEEPNESS * (probability - threshold))
    return (
        PROBABILITY_WEIGHT * balanced_cross_entropy(logits[:, 0], truth, mask)
        + THRESHOLD_WEIGHT * masked_l1(threshold, thresh, thresh_mask.float())
        + BINARY_WEIGHT * dice(binary, truth, mask)
    )


def probability_loss(logits: torch.Tensor, shrink: torch.Tensor, shrink_mask: torch.Tensor) -> torch.Tensor:
    """Compute the validation loss: that of the probability map alone, with its weight.

    Args:
        logits: Logits of the probability, `[batch, 1, height, width]`.
        shrink: 1 inside shrunk texts, else 0, `[batch, height, width]`.
        shrink_mask: 1 where `shrink` counts, else 0.
    """
    return PROBABILITY_WEIGHT * balanced_cross_entropy(logits[:, 0].float(), shrink.float(), shrink_mask.float())


def balanced_cross_entropy(logits: torch.Tensor, truth: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the mean cross entropy over the positive pixels and the hardest negative ones, three per positive.

    Args:
        logits: `[batch, height, width]`.
        truth: 0 or 1, of the same shape.
        mask: 0 where a pixel does not count.
    """
    positive, negative = truth * mask, (1 - truth) * mask
    each = F.binary_cross_entropy_with_logits(logits, truth, reduction="none")
    num_positive = positive.sum()
    wanted = torch.minimum(negative.sum(), num_positive * NEGATIVES_PER_POSITIVE)
    hardest = torch.topk((each * negative).flatten(), int(wanted), sorted=False).values
    return ((each * positive).sum() + hardest.sum()) / (num_positive + wanted + _EPS)


def masked_l1(predicted: torch.Tensor, truth: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the mean absolute difference where the mask is 1; 0 if the mask is empty."""
    return ((predicted - truth).abs() * mask).sum() / mask.sum().clamp(min=1)


def dice(predicted: torch.Tensor, truth: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return one minus the Dice coefficient over the whole batch, where the mask is 1."""
    overlap = (predicted * truth * mask).sum()
    return 1 - 2 * overlap / ((predicted * mask).sum() + (truth * mask).sum() + _EPS)
