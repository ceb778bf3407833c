"""Keep to a time budget: how much is left, and how much the final proof will need."""

from __future__ import annotations

import math
from dataclasses import dataclass
from time import monotonic

FINAL_SHARE = 0.5
"""Share of the budget that is planned for the final proof."""
REPORT_S = 4.0
"""Seconds reserved for writing the report."""
MIN_FINAL_UPDATES, MAX_FINAL_UPDATES = 12, 400
"""Updates per process of a final comparison; the maximum is that of jobs."""
ENOUGH_S = 6.0
"""Seconds counted by both processes of a script, beyond which a pair becomes no more certain: over the public scripts
(benchmarks/results/public.json), the ratios of a proof's pairs differ no less with 10 to 20 s than with 4 to 6, but several
times as much below 1.5. A script starts slowly, so the time saved is worth several candidates."""
MIN_FINAL_S = 0.5
"""Minimum seconds counted by both processes together: shorter runs prove nothing, and starting them costs far more."""
PAIRS, LEAST_PAIRS = 5, 3
"""Number of pairs planned for a proof, and the minimum with which it may end when time is short."""
LEAST_PAIR_UPDATES = 6
"""Minimum updates per process when a pair is shortened."""
COUNTED_FRAC = 0.1
"""Updates that take up to this share of a pair's fixed time are never left out: that saves no time, and costs certainty."""
WARM_UPDATES = 4
"""Approximate number of uncounted warm-up updates per process."""
SIDE_BY_SIDE = 1.5
"""Two processes that load at the same time take this many times as long as one."""
MARGIN = 1.15
"""Safety factor for estimates."""


def cheap_updates(fixed_s: float, both_s: float) -> int:
    """Return how many updates cost next to nothing in a pair, given its fixed seconds and those of an update of both."""
    return int(COUNTED_FRAC * fixed_s / both_s)


@dataclass(frozen=True)
class Budget:
    """A time budget in seconds, counted from `started` (monotonic)."""

    seconds: float
    started: float

    @classmethod
    def begin(cls, seconds: float) -> Budget:
        """Return a budget that starts now."""
        return cls(seconds, monotonic())

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return monotonic() - self.started

    @property
    def left(self) -> float:
        """Seconds left; negative if the budget is exceeded."""
        return self.seconds - self.spent

    def ask_for(self, more_s: float) -> str:
        """Return a `--budget` option, in whole minutes, that covers the time spent so far plus `more_s` seconds."""
        return f"--budget {math.ceil((self.spent + more_s) / 60.0)}m"

    @property
    def deadline(self) -> float:
        """The monotonic time at which measuring must stop so that the report can still be written."""
        return self.started + self.seconds - REPORT_S


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What the steps of a tuning cost, in seconds.

    Attributes:
        start_s: Starting a trial process and loading the job.
        base_update_s: One update under the empty plan.
        validation_s: One measurement of the held-out data under the empty plan.
        side_by_side: Whether both processes of a pair load at the same time.
        warming_s: Seconds that a process under the current plan needs longer than a plain one to reach full speed.
        of_script: Whether a script is tuned. The held-out data of a job is judged better after more updates.
    """

    start_s: float
    base_update_s: float
    validation_s: float
    side_by_side: bool = False
    warming_s: float = 0.0
    of_script: bool = False

    def pair_s(self, updates: int, update_s: float) -> float:
        """Return the seconds of a fresh pair: the empty plan against one with updates of `update_s`, with cache filling."""
        warm = WARM_UPDATES * (self.base_update_s + update_s) + self.warming_s
        starts = SIDE_BY_SIDE if self.side_by_side else 2.0
        return starts * self.start_s + warm + updates * (self.base_update_s + update_s) + 2 * self.validation_s

    def final_updates(self, seconds: float, update_s: float) -> int:
        """Return the updates per process with which `PAIRS` pairs fit into `seconds`."""
        overhead = self.pair_s(0, update_s)
        both_s = self.base_update_s + update_s
        updates = int((seconds / PAIRS / MARGIN - overhead) / both_s)
        least = max(MIN_FINAL_UPDATES, int(MIN_FINAL_S / both_s), cheap_updates(overhead, both_s))
        most = int(ENOUGH_S / both_s) if self.of_script else MAX_FINAL_UPDATES
        return max(min(updates, most), least)

    def whole_proof_s(self, updates: int, update_s: float, pairs: int = PAIRS) -> float:
        """Return the seconds of a final comparison whose pairs train for `updates` updates, a whole run."""
        return pairs * self.pair_s(updates, update_s) * MARGIN

    def final_s(self, seconds: float, update_s: float) -> float:
        """Return the seconds that the final comparison will take if about `seconds` are reserved for it."""
        return PAIRS * self.pair_s(self.final_updates(seconds, update_s), update_s) * MARGIN

    def least_final_s(self, update_s: float) -> float:
        """Return the seconds of the shortest final comparison that can reach a verdict."""
        both_s = self.base_update_s + update_s
        least = max(LEAST_PAIR_UPDATES, int(MIN_FINAL_S / both_s), cheap_updates(self.pair_s(0, update_s), both_s))
        updates = min(least, self.final_updates(0.0, update_s))
        return LEAST_PAIRS * self.pair_s(updates, update_s) * MARGIN

    def whole_run_s(self, updates: int, update_s: float, points: int) -> float:
        """Return the seconds of a whole run in a fresh process, warm-up and held-out measurements included."""
        return (self.start_s + (updates + 4) * update_s + (points + 1) * self.validation_s) * MARGIN

    def screening_s(self, turns: int, updates: int, update_s: float) -> float:
        """Return the seconds of screening one candidate if a base update takes `update_s`."""
        return 1.5 * self.start_s + 20 * update_s + 2 * turns * updates * update_s
