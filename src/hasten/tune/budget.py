"""Keep to a time budget: what is left, and what the proof at the end will need."""

from __future__ import annotations

import math
from dataclasses import dataclass
from time import monotonic

FINAL_SHARE = 0.5
REPORT_S = 4.0
MIN_FINAL_UPDATES, MAX_FINAL_UPDATES = 12, 400
MIN_FINAL_S = 0.5
"""Both processes together count at least so long: a few milliseconds prove nothing, and starting them costs far more."""
PAIRS, LEAST_PAIRS = 5, 3
"""What a proof is planned with, and with how few it may end where the time does not hold more."""
LEAST_PAIR_UPDATES = 6
"""Updates of each process that a pair may be shortened to."""
WARM_UPDATES = 4
"""Updates of each process before any is counted, about."""
SIDE_BY_SIDE = 1.5
"""Two processes that load side by side take so many times what one alone takes."""
MARGIN = 1.15
"""An estimate is trusted this far."""


@dataclass(frozen=True)
class Budget:
    """A time budget in seconds, counted from `started` (monotonic)."""

    seconds: float
    started: float

    @classmethod
    def begin(cls, seconds: float) -> Budget:
        """A budget that starts now."""
        return cls(seconds, monotonic())

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return monotonic() - self.started

    @property
    def left(self) -> float:
        """Seconds left; negative once it is overdrawn."""
        return self.seconds - self.spent

    def ask_for(self, more_s: float) -> str:
        """A `--budget` that holds `more_s` seconds beside what is spent, in whole minutes."""
        return f"--budget {math.ceil((self.spent + more_s) / 60.0)}m"

    @property
    def deadline(self) -> float:
        """The monotonic time at which measuring must end, the report still to be written."""
        return self.started + self.seconds - REPORT_S


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What things cost here, in seconds.

    Attributes:
        start_s: Starting a trial process and bringing the job to life.
        base_update_s: One update under the empty plan.
        validation_s: Measuring the held-out data once, under the empty plan.
        side_by_side: Both processes of a pair load at the same time.
    """

    start_s: float
    base_update_s: float
    validation_s: float
    side_by_side: bool = False

    def pair_s(self, updates: int, update_s: float) -> float:
        """One pair of fresh processes, the empty plan against one with updates of `update_s`, filling of caches included."""
        warm = WARM_UPDATES * (self.base_update_s + update_s)
        starts = SIDE_BY_SIDE if self.side_by_side else 2.0
        return starts * self.start_s + warm + updates * (self.base_update_s + update_s) + 2 * self.validation_s

    def final_updates(self, seconds: float, update_s: float) -> int:
        """Updates per process so that `PAIRS` pairs fit into `seconds`."""
        overhead = self.pair_s(0, update_s)
        both_s = self.base_update_s + update_s
        updates = int((seconds / PAIRS / MARGIN - overhead) / both_s)
        return min(max(updates, MIN_FINAL_UPDATES, int(MIN_FINAL_S / both_s)), MAX_FINAL_UPDATES)

    def whole_proof_s(self, updates: int, update_s: float, pairs: int = PAIRS) -> float:
        """What a final comparison takes whose pairs train for so many updates, those of the whole run."""
        return pairs * self.pair_s(updates, update_s) * MARGIN

    def final_s(self, seconds: float, update_s: float) -> float:
        """What the final comparison will take when about `seconds` are set aside for it."""
        return PAIRS * self.pair_s(self.final_updates(seconds, update_s), update_s) * MARGIN

    def least_final_s(self, update_s: float) -> float:
        """What the shortest final comparison takes that may say anything."""
        both_s = self.base_update_s + update_s
        updates = min(max(LEAST_PAIR_UPDATES, int(MIN_FINAL_S / both_s)), self.final_updates(0.0, update_s))
        return LEAST_PAIRS * self.pair_s(updates, update_s) * MARGIN

    def whole_run_s(self, updates: int, update_s: float, points: int) -> float:
        """One whole run in a fresh process, its warm-up and held-out measurements included."""
        return (self.start_s + (updates + 4) * update_s + (points + 1) * self.validation_s) * MARGIN

    def screening_s(self, turns: int, updates: int, update_s: float) -> float:
        """Screening one candidate at a base update of `update_s`."""
        return 1.5 * self.start_s + 20 * update_s + 2 * turns * updates * update_s
