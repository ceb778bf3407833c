"""Detect losses and gradients that are NaN or infinite, and losses that jump; and the policies against them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Literal, TypeAlias, get_args

import torch

Policy: TypeAlias = Literal["stop", "skip", "rollback"]
POLICIES: tuple[Policy, ...] = get_args(Policy)

_LOOKED_BACK = 100
_FEWEST = 20
_JUMP = 8.0
"""Deviations above the median at which a loss has jumped. A deviation is 1.4826 times the median distance from it."""
_LEAST_RISE = 0.5
"""A jump is at least such a share of the median: quiet losses deviate by next to nothing."""
_QUIET_AFTER = 50


@dataclass(frozen=True, kw_only=True)
class NonFinitePolicy:
    """What is done about a loss or a gradient that is NaN or infinite.

    Attributes:
        policy: `stop` ends the run at the loss, whose checkpoints are whole; `skip` leaves that update out; `rollback`
            goes back to the newest checkpoint and on from there at a lower learning rate.
        rate: What the learning rate is multiplied by at a rollback.
        most: Updates in a row that may be left out, or rollbacks of a run, before it ends after all.
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
    """Finds losses that jump out of those before them."""

    def __init__(self) -> None:
        self._losses: deque[float] = deque(maxlen=_LOOKED_BACK)
        self._quiet_until = 0

    def look(self, update: int, loss: float) -> str:
        """Whether a loss jumped, in words; empty where it did not. After one, others are not told for a while."""
        before = list(self._losses)
        self._losses.append(loss)
        if len(before) < _FEWEST or update < self._quiet_until:
            return ""
        middle = median(before)
        deviation = 1.4826 * median(abs(value - middle) for value in before)
        if loss <= middle + max(_JUMP * deviation, _LEAST_RISE * abs(middle)):
            return ""
        self._quiet_until = update + _QUIET_AFTER
        return f"the loss jumped to {loss:.4g}, where the median of the last {len(before)} is {middle:.4g}"

    def forget(self) -> None:
        """Begin anew: the run went back."""
        self._losses.clear()
        self._quiet_until = 0


def all_finite(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether no number of any tensor is NaN or infinite, or so large that the norm of its tensor overflows."""
    given = [tensor for tensor in tensors if tensor.numel()]
    if not given:
        return True
    norms = torch._foreach_norm(given)  # noqa: SLF001  as torch's own clipping does it; one pass over the gradients
    return (
        all(bool(torch.isfinite(norm)) for norm in norms)
        if len(norms) == 1
        else bool(torch.isfinite(torch.stack(norms)).all())
    )
