"""The objective of a tuning: shorter updates, less memory, or a cheaper run."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from hasten.core.errors import HastenError

MEMORY_STEP_FRAC = 0.05
"""Minimum share by which a technique must lower peak memory to be kept. Peaks of identical processes differ by less."""
MEMORY_PROVED_FRAC = 0.10
"""Minimum share by which a whole plan must lower peak memory."""
SECONDS_PER_HOUR = 3600.0


class Goal(enum.StrEnum):
    """What to improve."""

    TIME = "time"
    MEMORY = "memory"
    COST = "cost"


@dataclass(frozen=True, kw_only=True)
class Objective:
    """What to improve, and what it may cost.

    Attributes:
        goal: `time`: the shortest update. `memory`: the lowest peak. `cost`: the cheapest whole run, so compilation and
            cache filling must be earned back within the run.
        max_slowdown: For `memory`: the longest update allowed, as a multiple of the plain job's; at least 1.
        price_per_hour: For `cost`: the price of this machine, in any currency.
    """

    goal: Goal = Goal.TIME
    max_slowdown: float = 1.5
    price_per_hour: float | None = None

    def __post_init__(self) -> None:
        if not self.max_slowdown >= 1.0:
            raise HastenError(f"--max-slowdown must be at least 1 (no slowdown), not {self.max_slowdown}.")
        if self.goal is Goal.COST and not (self.price_per_hour or 0.0) > 0.0:
            raise HastenError("--objective cost needs this machine's price: add --price-per-hour 2.50, in any currency.")
        if self.goal is not Goal.COST and self.price_per_hour is not None:
            raise HastenError(f"--price-per-hour needs --objective cost, but the objective is {self.goal}.")

    def allows(self, ratio: float) -> bool:
        """Return whether a plan with this speed ratio to the plain job is fast enough when memory is the goal."""
        return ratio >= 1.0 / self.max_slowdown

    def to_dict(self) -> dict[str, Any]:
        """Return it as in the evidence file."""
        return {"goal": str(self.goal), "max_slowdown": self.max_slowdown, "price_per_hour": self.price_per_hour}


TIME = Objective()


def run_cost(step_ms: float, setup_s: float, updates: int, price_per_hour: float) -> float:
    """Return the cost of `updates` updates of `step_ms`, set-up included."""
    return (updates * step_ms / 1e3 + setup_s) / SECONDS_PER_HOUR * price_per_hour
