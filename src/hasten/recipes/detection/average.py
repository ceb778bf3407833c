"""Keep a running average of a model's weights and statistics in the model itself, and use it outside of training.

The average of the last few hundred updates is better than the last state. Its memory must be short compared with the run: an
average that still remembers the initial weights is worse than none. The decay therefore grows with the updates as
`decay * (1 - exp(-updates / ramp))`. With the defaults, the average spans about 3 updates after 100, 7 after 200, 93 after
500, and 250 eventually.

Batch-normalization statistics are averaged together with the weights they belong to. The live model runs in training, the
average in `eval` mode. The average has no gradients; give optimizers only the live model's parameters.
"""

from __future__ import annotations

import copy
from typing import Any, Self

import torch
from torch import nn

DECAY = 0.996
RAMP_UPDATES = 100.0


class Averaged(nn.Module):
    """A model and its running average.

    Args:
        live: The model being trained.
        decay: Fraction of itself that the average eventually keeps at each update; below 1.
        ramp_updates: Number of updates after which the decay has reached 63 % of its final value.

    Attributes:
        live: The model being trained.
        average: Its average, a model of the same class.
        num_updates: int64 scalar; part of the state, so that a resumed run continues correctly.
    """

    num_updates: torch.Tensor

    def __init__(self, live: nn.Module, *, decay: float = DECAY, ramp_updates: float = RAMP_UPDATES) -> None:
        super().__init__()
        self.live = live
        self.average = copy.deepcopy(live).requires_grad_(requires_grad=False).eval()
        self.decay, self.ramp_updates = decay, ramp_updates
        self.register_buffer("num_updates", torch.zeros((), dtype=torch.int64))

    def forward(self, *inputs: Any) -> Any:
        """Call the live model in training mode, the average otherwise."""
        return self.live(*inputs) if self.training else self.average(*inputs)

    def train(self, mode: bool = True) -> Self:  # noqa: FBT001, FBT002  as torch has it
        """Set the mode of the live model; the average always stays in eval mode."""
        super().train(mode)
        self.average.eval()
        return self

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the live model without a device synchronization."""
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
        steps = torch._foreach_sub(towards, moved)  # noqa: SLF001  has no public name, like the two below
        torch._foreach_mul_(steps, move)
        torch._foreach_add_(moved, steps)
