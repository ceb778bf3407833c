"""Detect NaN and infinite losses and gradients, and loss spikes, and define the policies for handling them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Literal, TypeAlias, get_args

import torch

from hasten.core.layouts import dense_parts, is_dense

Policy: TypeAlias = Literal["stop", "skip", "rollback"]
POLICIES: tuple[Policy, ...] = get_args(Policy)

_LOOKED_BACK = 100
"""Number of recent losses that a loss is compared with."""
_FEWEST = 20
"""Minimum number of earlier losses for a comparison."""
_JUMP = 8.0
"""Deviations above the median at which a loss is a spike. A deviation is 1.4826 times the median distance from it."""
_LEAST_RISE = 0.5
"""Minimum height of a spike as a share of the median, for losses that hardly vary."""
_LEAST_OF_START = 0.05
"""Minimum height of a spike as a share of the first losses: near zero, a multiple of the loss is still negligible."""
_QUIET_AFTER = 50
"""Number of updates after the first spike in which no other is reported. Doubled at each report."""


@dataclass(frozen=True, kw_only=True)
class NonFinitePolicy:
    """How to handle a NaN or infinite loss or gradient.

    Attributes:
        policy: `stop` ends the run and keeps its checkpoints; `skip` skips the update; `rollback` rolls back to the newest
            checkpoint and continues at a lower learning rate.
        rate: Factor on the learning rate at a rollback.
        most: Maximum number of skipped updates in a row, or of rollbacks in a run, before it stops.
    """

    policy: Policy = "stop"
    rate: float = 0.5
    most: int = 5

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ValueError(f"policy must be one of {', '.join(POLICIES)}, not {self.policy!r}")
        if not 0.0 < self.rate <= 1.0:
            raise ValueError(f"rate must be above 0 and at most 1, not {self.rate}")
        if self.most < 1:
            raise ValueError(f"most must be at least 1, not {self.most}")


class SpikeWatch:
    """Detects losses that are far above the recent ones."""

    def __init__(self) -> None:
        self._losses: deque[float] = deque(maxlen=_LOOKED_BACK)
        self._start = 0.0
        self._quiet_until, self._quiet_for = 0, _QUIET_AFTER

    def look(self, update: int, loss: float) -> str:
        """Describe the spike if a loss is one; otherwise return an empty string. After each spike, pause for longer."""
        before = list(self._losses)
        self._losses.append(loss)
        if len(before) < _FEWEST or update < self._quiet_until:
            return ""
        middle = median(before)
        self._start = self._start or abs(middle)
        deviation = 1.4826 * median(abs(value - middle) for value in before)
        if loss <= middle + max(_JUMP * deviation, _LEAST_RISE * abs(middle), _LEAST_OF_START * self._start):
            return ""
        self._quiet_until = update + self._quiet_for
        self._quiet_for *= 2
        return f"the loss jumped to {loss:.4g}, while the median of the last {len(before)} is {middle:.4g}"

    def forget(self) -> None:
        """Forget all losses after a rollback."""
        self._losses.clear()
        self._quiet_until, self._quiet_for = 0, _QUIET_AFTER


def all_finite(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether all values are finite and no tensor's norm overflows."""
    parts = (part for tensor in tensors for part in ([tensor] if is_dense(tensor) else dense_parts(tensor)))
    given = [part for part in parts if part.numel() and (part.is_floating_point() or part.is_complex())]
    if not given:
        return True
    norms = torch._foreach_norm(given)  # noqa: SLF001  as in torch's own clipping; one pass over the gradients
    return bool(torch.isfinite(torch.stack([norm.to(norms[0].device) for norm in norms])).all())
