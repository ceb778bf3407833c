"""How the gradients of several ranks become one while the backward pass runs: the contract, and tensors in shards.

The loop adds the gradients of all ranks up after the backward pass, as one message. A technique that does it earlier puts a
`GradientSync` on the live job; the loop then computes losses through it, and leaves its own sum out where it was done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from hasten.core.job import Loss


class GradientSync(Protocol):
    """Averages gradients over the ranks during the backward pass.

    Attributes:
        kind: As `JobFacts.gradient_sync` says it: `buckets` or `shards`.
        each_pass: Whether every forward and every backward pass talks to the other ranks, who must then make as many, and
            gradients are averaged at each; otherwise this happens at the last pass of an accumulation window alone.
    """

    kind: str
    each_pass: bool

    def loss(self, batch: Any, *, last: bool) -> torch.Tensor | Loss:
        """Compute the loss of a batch; `last` says whether its backward pass is the last one of the window."""
        ...

    def backward(self, objective: torch.Tensor, *, computed: Callable[[], None]) -> None:
        """Run the backward pass of what `loss` gave; `computed` is told when the last gradient is there but not yet sent.

        At the end the gradients of a synchronised pass are the mean over the ranks (not the sum).
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """The model's state with whole tensors and plain names. Where tensors lie in shards, all ranks must ask together."""
        ...


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The whole of a tensor that lies in shards over the ranks (all of them must ask together); any other as it is."""
    gather = getattr(tensor, "full_tensor", None)
    return tensor if gather is None else gather()


def shard(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor that lies in shards, sharing its memory; any other tensor as it is."""
    part = getattr(tensor, "to_local", None)
    return tensor if part is None else part()
