"""The interface for averaging gradients over ranks during the backward pass, and access to sharded tensors.

By default, the loop sums the gradients of all ranks after the backward pass, as one message. A technique that does it
earlier sets a `GradientSync` on the live job. The loop then computes losses through it and skips its own sum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from hasten.core.job import Loss


class GradientSync(Protocol):
    """Averages gradients over the ranks during the backward pass.

    Attributes:
        kind: The value of `JobFacts.gradient_sync`: `buckets` or `shards`.
        each_pass: Whether every forward and backward pass communicates and averages gradients. All ranks must then run the
            same number of passes. If False, only the last pass of an accumulation window does.
    """

    kind: str
    each_pass: bool

    def loss(self, batch: Any, *, last: bool) -> torch.Tensor | Loss:
        """Compute the loss of a batch. `last` says whether its backward pass is the last one of the window."""
        ...

    def backward(self, objective: torch.Tensor, *, computed: Callable[[], None]) -> None:
        """Run the backward pass of a loss, and call `computed` when the last gradient is computed but not yet sent.

        After a synchronised pass, gradients are the mean over the ranks (not the sum).
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the model's state_dict with unsharded tensors and the model's own names.

        If tensors are sharded, all ranks must call it together.
        """
        ...


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return the full tensor of a sharded tensor (all ranks must call it together), or any other tensor unchanged."""
    gather = getattr(tensor, "full_tensor", None)
    return tensor if gather is None else gather()


def shard(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a sharded tensor, sharing its memory, or any other tensor unchanged."""
    part = getattr(tensor, "to_local", None)
    return tensor if part is None else part()
