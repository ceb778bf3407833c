"""Which positions of a batch count: what a job says in `Job.counted`, made sure of."""

from __future__ import annotations

from typing import Any

import torch

from hasten.core.errors import JobError
from hasten.core.job import Job


def counted_mask(job: Job, batch: Any) -> torch.Tensor:
    """Where the loss of `batch` uses the model's output: bool, as a rule `[batch, length]`, without a gradient.

    Args:
        job: A job that overrides `counted`.
        batch: As `Job.loss` takes it.

    Raises:
        JobError: What the job returned is no mask.
    """
    with torch.no_grad():
        mask: Any = job.counted(batch)
    if isinstance(mask, torch.Tensor) and mask.dtype == torch.bool and mask.dim() > 0:
        return mask
    seen = f"a tensor {list(mask.shape)} of {mask.dtype}" if isinstance(mask, torch.Tensor) else type(mask).__name__
    raise JobError(
        f"{type(job).__name__}.counted returned {seen}: return a bool tensor [batch, length], true where the loss uses the "
        f"model's output (labels != ignore_index)."
    )
