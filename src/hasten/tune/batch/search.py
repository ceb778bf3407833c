"""Search for the best number of samples to compute at once, without changing the optimizer batch.

A size fits if a separate process ran one optimizer batch of the longest real samples twice, with the optimizer's step and a
held-out batch, and kept the headroom. The sizes that fit take turns on the job's own data. The winner runs the longest
samples again, for longer; if it fails, the next one is chosen. Deliberately omitted: a bisection for the largest size that
fits, since the largest is seldom the fastest, and any change of the optimizer batch, which is a separate question (the
technique `optimizer_batch`, judged by time to target).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

from hasten.core.errors import PlanError, TrialError
from hasten.tune.batch.choice import (
    MeasuredSize,
    Size,
    behind,
    candidate_sizes,
    choose,
    median_interval,
    with_head_room,
    without_drift,
)
from hasten.tune.batch.measure import Lab, Race, Survey, Turn, WorstCase
from hasten.tune.budget import Budget

FIRST_UPDATES = 2
"""The second update includes the optimizer's state, which the first one creates."""
FIRST_LOOKS_FRAC = 0.5
"""Share of the budget after which no further size is tried; the rest is for turns and the longer run."""
FAR_BEHIND = 0.5
"""If a size is slower than this share of the fastest on the longest samples, no smaller one is tried."""
TURN_S = 0.25
"""Approximate length of a turn in seconds."""
MAX_UPDATES = 200
LEAST_TURNS, TURNS_TO_JUDGE, MAX_TURNS = 3, 5, 15
"""Turns of each size: minimum; before a size may be dropped; maximum."""
MAX_RETAKEN = 15
"""Maximum number of rounds that are repeated because other processes disturbed one of their turns."""
CONFIRM_S = 10.0
"""Approximate length in seconds of the longer run of the winner."""
LEAST_CONFIRMED, MAX_CONFIRMED = 3, 12
WARM_UPDATES = 2
"""Warm-up before the first turn: one update, and one on the short batch that ends an epoch."""
TOGETHER_FRAC = 0.5
"""Processes are kept alive side by side only if they use at most this share of the memory."""
LATE = "the time ran out; use a larger --budget"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of the search.

    Attributes:
        survey: What was known before.
        chosen: The chosen size; None if none fits.
        candidates: Every size, smallest first.
        head_room_frac: The share of the limit that stays free.
        limit_bytes: Memory that a process may use; 0 if unknown because all died.
    """

    survey: Survey
    chosen: Size | None
    candidates: tuple[MeasuredSize, ...]
    head_room_frac: float
    limit_bytes: int

    @property
    def optimizer_batch(self) -> int:
        """Samples that one update sees."""
        return self.survey.batch_size * self.survey.accumulation

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON. `plan` belongs under `[optimizations]`; empty if the job computes that size without one."""
        return {
            "batch_size": self.survey.batch_size,
            "optimizer_batch": self.optimizer_batch,
            "chosen": self.chosen.samples if self.chosen else None,
            "plan": self.chosen.settings() if self.chosen else {},
            "candidates": [item.to_dict() for item in self.candidates],
            "head_room_frac": self.head_room_frac,
            "limit_bytes": self.limit_bytes,
            "longest": {
                "size": self.survey.longest,
                "unit": self.survey.unit,
                "scanned": self.survey.scanned,
                "num_samples": self.survey.num_samples,
            },
        }


def search_batch(
    lab: Lab, *, head_room_frac: float = 0.1, budget: Budget | None = None, say: Callable[[str], None] = lambda _: None
) -> Finding:
    """Search for the best microbatch size of a job at its own optimizer batch.

    Args:
        lab: Measures sizes.
        head_room_frac: The share of the memory limit that stays free.
        budget: Time budget; None for no limit. The minimum that distinguishes sizes is measured in any case.
        say: Called with a message at each step.

    Raises:
        TrialError: The job cannot be loaded, or its unchanged form fails on its longest samples for another reason than
            memory.
    """
    return _Search(lab, head_room_frac, budget, say).run()


class _Search:
    def __init__(self, lab: Lab, head_room_frac: float, budget: Budget | None, say: Callable[[str], None]) -> None:
        self._lab, self._head_room, self._budget, self._say = lab, head_room_frac, budget, say
        self._measured: dict[int, MeasuredSize] = {}
        self._update_s: dict[int, float] = {}
        self._typical_s: dict[int, float] = {}
        self._start_s: dict[int, float] = {}
        self._limit = 0

    def run(self) -> Finding:
        self._say("searching for the longest samples")
        self._survey = survey = self._lab.survey()
        self._sizes = candidate_sizes(survey.batch_size, survey.accumulation)
        self._first_looks()
        self._take_turns()
        chosen = self._confirmed()
        return Finding(
            survey=survey,
            chosen=chosen,
            candidates=tuple(self._measured[size.samples] for size in self._sizes),
            head_room_frac=self._head_room,
            limit_bytes=self._limit,
        )

    # Which sizes fit.

    def _first_looks(self) -> None:
        """Try sizes upward from the job's own until one does not fit, then downward until one is far slower."""
        own = self._survey.batch_size
        upward = [size for size in self._sizes if size.samples >= own]
        downward = [size for size in reversed(self._sizes) if size.samples < own]
        for direction in (upward, downward):
            stop = ""
            for size in direction:
                why = stop or self._refusal(size)
                if not why and size.samples != own and self._spent(FIRST_LOOKS_FRAC):
                    why = f"not tried: {LATE}"
                if why:
                    self._measured[size.samples] = MeasuredSize(size=size.samples, why=why)
                else:
                    stop = self._look(size)

    def _look(self, size: Size) -> str:
        """Run one size on the longest samples. Returns why sizes beyond it need not be tried; empty if they do."""
        samples = size.samples
        self._say(f"{samples} samples at once, on the longest samples")
        own, started = samples == self._survey.batch_size, monotonic()
        try:
            worst = self._lab.hold(size, FIRST_UPDATES)
        except PlanError as error:
            self._measured[samples] = MeasuredSize(size=samples, why=f"not applicable: {error}")
            return ""
        except TrialError as error:
            memory = bool(_lack_of_memory(error))
            if own and not memory:
                raise
            self._measured[samples] = MeasuredSize(size=samples, why=_failure(error))
            return f"not tried: {samples} did not fit" if memory and samples >= self._survey.batch_size else ""
        self._limit = worst.limit_bytes
        self._update_s[samples], self._typical_s[samples] = worst.update_s, worst.typical_s
        self._start_s[samples] = max(monotonic() - started - FIRST_UPDATES * worst.update_s - worst.typical_s, 0.0)
        why = self._too_much(worst)
        self._measured[samples] = MeasuredSize(size=samples, peak_bytes=worst.peak_bytes, fits=not why, why=why)
        if why:
            return f"not tried: {samples} did not fit" if samples >= self._survey.batch_size else ""
        fastest = min(self._update_s, key=lambda other: self._update_s[other])
        if samples < self._survey.batch_size and self._update_s[fastest] < FAR_BEHIND * worst.update_s:
            return f"not tried: {samples} is already more than {1 / FAR_BEHIND:.0f} times slower than {fastest}"
        return ""

    def _refusal(self, size: Size) -> str:
        for name in size.settings():
            if name in self._survey.refused:
                return f"not applicable: {self._survey.refused[name]}"
        return ""

    def _too_much(self, worst: WorstCase) -> str:
        if worst.retries:
            return f"the allocator had to free memory {worst.retries} times to continue"
        if worst.peak_bytes <= with_head_room(worst.limit_bytes, self._head_room):
            return ""
        free = 1.0 - worst.peak_bytes / worst.limit_bytes
        return f"leaves {max(free, 0.0):.1%} of the memory free, less than the required headroom of {self._head_room:.1%}"

    # How fast they are.

    def _take_turns(self) -> None:
        racing = self._contenders()
        if not racing:
            return
        updates = self._updates(racing)
        self._say(f"{', '.join(str(size.samples) for size in racing)} samples at once, in turns on the job's own data")
        turns: dict[int, list[float]] = {size.samples: [] for size in racing}
        taken = retaken = 0
        with self._lab.race(racing, together=self._together(racing)) as race:
            while taken < MAX_TURNS and racing:
                late = self._spent(1.0)
                if taken >= LEAST_TURNS and (late or (len(racing) < 2 and taken >= TURNS_TO_JUDGE)):
                    break
                self._say(f"  turn {taken + 1} of at most {MAX_TURNS}")
                a_round = self._round(race, racing, updates, taken + retaken)
                racing = [size for size in racing if size.samples in a_round]
                if any(turn.spoilt for turn in a_round.values()) and retaken < MAX_RETAKEN and not late:
                    retaken += 1
                    continue
                taken += 1
                for samples, turn in a_round.items():
                    turns[samples].append(turn.samples_per_s)
                slow = behind({size.samples: turns[size.samples] for size in racing}) if taken >= TURNS_TO_JUDGE else set()
                racing = [size for size in racing if size.samples not in slow]
        sound = {samples: speeds for samples, speeds in turns.items() if self._measured[samples].fits}
        for samples, speeds in without_drift(sound).items():
            low, high = median_interval(speeds)
            self._measured[samples] = replace(
                self._measured[samples], samples_per_s=statistics.median(speeds), low=low, high=high
            )

    def _round(self, race: Race, racing: Sequence[Size], updates: int, number: int) -> dict[int, Turn]:
        """Take a turn of each size, in alternating order. A size that fails gets no turn and counts as not fitting."""
        turns = {}
        for size in racing if number % 2 == 0 else racing[::-1]:
            try:
                turns[size.samples] = race.turn(size, updates, number)
            except TrialError as error:
                self._measured[size.samples] = replace(self._measured[size.samples], fits=False, why=_failure(error))
        return turns

    def _contenders(self) -> list[Size]:
        """Return the sizes that fit. If time is short, drop the slowest, but keep the job's own size and one more."""
        racing = [size for size in self._sizes if self._measured[size.samples].fits]
        while self._budget is not None and len(racing) > 2 and self._turns_s(racing) > self._budget.left:
            others = [size for size in racing if size.samples != self._survey.batch_size]
            slowest = max(others, key=lambda size: self._update_s[size.samples])
            racing.remove(slowest)
            self._measured[slowest.samples] = replace(self._measured[slowest.samples], why=f"fits, but not timed: {LATE}")
        return racing

    def _updates(self, racing: Sequence[Size]) -> int:
        """Return the updates per turn, the same for all sizes, so that all see the same samples."""
        quickest = min(self._typical_s[size.samples] for size in racing)
        return min(max(math.ceil(TURN_S / max(quickest, 1e-6)), 1), MAX_UPDATES)

    def _turns_s(self, racing: Sequence[Size]) -> float:
        """Return the approximate seconds of the minimum number of turns of these sizes."""
        a_turn_s = self._updates(racing) * sum(self._typical_s[size.samples] for size in racing)
        starts_s = sum(self._start_s[size.samples] + WARM_UPDATES * self._typical_s[size.samples] for size in racing)
        return LEAST_TURNS * a_turn_s + starts_s * (1 if self._together(racing) else LEAST_TURNS)

    def _together(self, racing: Sequence[Size]) -> bool:
        """Return whether all of these sizes fit into memory side by side."""
        peaks = sum(self._measured[size.samples].peak_bytes or 0 for size in racing)
        return self._survey.device == "cpu" and peaks <= TOGETHER_FRAC * self._survey.host_limit_bytes

    # The winner.

    def _confirmed(self) -> Size | None:
        """Return the best size that also survives a longer run."""
        while True:
            best = choose(list(self._measured.values()), self._survey.batch_size)
            if best is None:
                return None
            size = next(size for size in self._sizes if size.samples == best.size)
            self._say(f"{best.size} samples at once, for longer")
            updates = min(max(int(CONFIRM_S / max(self._update_s[best.size], 1e-6)), LEAST_CONFIRMED), MAX_CONFIRMED)
            try:
                worst = self._lab.hold(size, updates)
            except TrialError as error:
                why, peak = _failure(error), best.peak_bytes
            else:
                why, peak = self._too_much(worst), max(worst.peak_bytes, best.peak_bytes or 0)
            if not why:
                self._measured[best.size] = replace(best, peak_bytes=peak)
                return size
            why = f"failed in a longer run: {why}"
            self._measured[best.size] = replace(best, peak_bytes=peak, fits=False, why=why)

    def _spent(self, share: float) -> bool:
        return self._budget is not None and self._budget.spent > share * self._budget.seconds


def _lack_of_memory(error: TrialError) -> str:
    """Return a lack of memory in words; empty if the trial failed for another reason."""
    if error.kind == "out_of_memory":
        return "out of memory"
    killed = error.kind == "killed" and "SIGKILL" in str(error)
    return "probably out of memory: the system ended the process" if killed else ""


def _failure(error: TrialError) -> str:
    """Return a failed trial in words. For a lack of memory, the operator that failed is not relevant."""
    return _lack_of_memory(error) or str(error)
