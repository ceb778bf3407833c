"""The learning-rate schedule of the recipes."""

from __future__ import annotations

import math

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler


def warmup_cosine(optimizer: Optimizer, num_updates: int, *, warmup_frac: float, final_frac: float = 0.0) -> LRScheduler:
    """Increase the learning rate linearly, then decay it along a half cosine.

    Args:
        optimizer: The optimizer, set to the peak learning rate.
        num_updates: Number of updates in the whole run.
        warmup_frac: Fraction of the run in which the rate rises, from 0 to 1.
        final_frac: Final rate as a fraction of the peak, from 0 to 1.
    """
    warmup = max(round(warmup_frac * num_updates), 1)

    def factor(update: int) -> float:
        if update < warmup:
            return (update + 1) / warmup
        done = min((update - warmup) / max(num_updates - warmup, 1), 1.0)
        return final_frac + (1 - final_frac) * (1 + math.cos(math.pi * done)) / 2

    return LambdaLR(optimizer, factor)
