"""A running average of a model, weights and statistics alike, kept in the model itself and used when it is not training.

The average of the last some hundred updates is better than the last one. Its memory must be short against the run: an
average that still remembers the first weights is worse than none. So the decay grows with the updates, as
`decay * (1 - exp(-updates / ramp))`: with the defaults it remembers about 3 updates after 100, 7 after 200, 93 after 500,
and 250 in the end.

Statistics of batch normalisation are averaged with the weights, since they belong to them. In training the live model is
called; in `eval` mode the average is. It has no gradients, and optimizers must be given the live model's parameters alone.
"""

from __future__ import annotations

import copy
from typing import Any, Self

import torch
from torch import nn

DECAY = 0.996
RAMP_UPDATES = 100.0


class Averaged(nn.Module):
    """A model and its average.

    Args:
        live: The model that trains.
        decay: What the average keeps of itself at each update in the end; below 1.
        ramp_updates: After so many updates the decay has come 63 % of its way.

    Attributes:
        live: The model that trains.
        average: Its average; a model of the same kind.
        num_updates: int64 scalar; part of the state, so that a resumed run goes on.
    """

    num_updates: torch.Tensor

    def __init__(self, live: nn.Module, *, decay: float = DECAY, ramp_updates: float = RAMP_UPDATES) -> None:
        super().__init__()
        self.live = live
        self.average = copy.deepcopy(live).requires_grad_(requires_grad=False).eval()
        self.decay, self.ramp_updates = decay, ramp_updates
        self.register_buffer("num_updates", torch.zeros((), dtype=torch.int64))

    def forward(self, *inputs: Any) -> Any:
        """Call the live model in training, the average otherwise."""
        return self.live(*inputs) if self.training else self.average(*inputs)

    def train(self, mode: bool = True) -> Self:  # noqa: FBT001, FBT002  as torch has it
        """Train the live model or not; the average never does."""
        super().train(mode)
        self.average.eval()
        return self

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the live model. The host waits for no device."""
        self.num_updates += 1
        move = 1.0 - self.decay * (1.0 - torch.exp(-self.num_updates / self.ramp_updates))
        live = [*self.live.parameters(), *self.live.buffers()]
        average = [*self.average.parameters(), *self.average.buffers()]
        moved: list[torch.Tensor] = []
        towards: list[torch.Tensor] = []
        for mine, new in zip(average, live, strict=True):
            if mine.is_floating_point():
                moved.append(mine)
                towards.append(new.to(mine.dtype))
            else:
                mine.copy_(new)
        steps = torch._foreach_sub(towards, moved)  # noqa: SLF001  has no public name, as the two below
        torch._foreach_mul_(steps, move)
        torch._foreach_add_(moved, steps)
