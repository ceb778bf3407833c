"""What a tuning is for: a shorter update, less memory, or a cheaper run."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from hasten.core.errors import HastenError

MEMORY_STEP_FRAC = 0.05
"""A technique must lower the peak memory by this share to be kept for it: peaks of like processes differ by less."""
MEMORY_PROVED_FRAC = 0.10
"""A whole plan must lower it by this share."""
SECONDS_PER_HOUR = 3600.0


class Goal(enum.StrEnum):
    """What is wanted."""

    TIME = "time"
    MEMORY = "memory"
    COST = "cost"


@dataclass(frozen=True, kw_only=True)
class Objective:
    """What is wanted, and what it may cost.

    Attributes:
        goal: `time`: the shortest update. `memory`: the lowest peak. `cost`: the cheapest whole run, so that compiling and
            filling caches must be earned back within it.
        max_slowdown: For `memory`: how many times as long an update may take as in the plain job; at least 1.
        price_per_hour: For `cost`: of this machine, in any currency.
    """

    goal: Goal = Goal.TIME
    max_slowdown: float = 1.5
    price_per_hour: float | None = None

    def __post_init__(self) -> None:
        if not self.max_slowdown >= 1.0:
            raise HastenError(f"--max-slowdown must be at least 1 (no slowdown), not {self.max_slowdown}.")
        if self.goal is Goal.COST and not (self.price_per_hour or 0.0) > 0.0:
            raise HastenError("--objective cost needs the machine's price: add --price-per-hour 2.50, in any currency.")
        if self.goal is not Goal.COST and self.price_per_hour is not None:
            raise HastenError(f"--price-per-hour belongs to --objective cost, and the objective is {self.goal}.")

    def allows(self, ratio: float) -> bool:
        """Whether a plan of this speed, as a ratio to the plain job, is fast enough where memory is what is wanted."""
        return ratio >= 1.0 / self.max_slowdown

    def to_dict(self) -> dict[str, Any]:
        """As in the evidence file."""
        return {"goal": str(self.goal), "max_slowdown": self.max_slowdown, "price_per_hour": self.price_per_hour}


TIME = Objective()


def run_cost(step_ms: float, setup_s: float, updates: int, price_per_hour: float) -> float:
    """What `updates` updates of `step_ms` cost, set-up included."""
    return (updates * step_ms / 1e3 + setup_s) / SECONDS_PER_HOUR * price_per_hour
