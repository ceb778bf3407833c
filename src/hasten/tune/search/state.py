"""The state of a search: what is fixed from its beginning, what is known now, and the results that strategies return.

A strategy is a generator: it reads the state, runs trials, and yields one `Result` after the other. Only the search
(`search.py`) changes the state, after each result, so a strategy sees the new plan when it goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from hasten.core.card import Judge
from hasten.core.facts import Facts
from hasten.core.optimization import Optimization, clash
from hasten.core.plan import Plan
from hasten.profile.diagnosis import Diagnosis
from hasten.report.evidence import Candidate
from hasten.tune.budget import Budget, Costs
from hasten.tune.objective import TIME, Objective
from hasten.tune.proof.time_to_target import MIN_PAIRS
from hasten.tune.proof.whole_runs import TargetDesign
from hasten.tune.search.screening import TURNS
from hasten.tune.trials.pair import Design

TURN_S = 0.8
MAX_TURN_UPDATES = 200
EMPTY = Plan()


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """What a search is given.

    Attributes:
        catalogue: The techniques to choose from.
        costs: What things cost here.
        budget: The time budget.
        reserve_s: Seconds to keep for the final proof, for so many seconds of an update under the plan.
        updates: Updates per turn of the plain job.
        design: How fresh processes confirm a small gain.
        floor_frac: The smallest difference that can be detected here.
        objective: What is wanted.
        target_design: How whole runs are compared by time to target; None where there is no held-out metric.
        events_apart: Reports, checkpoints and validation are measured by themselves; else they are part of the updates.
    """

    catalogue: Mapping[str, type[Optimization]]
    costs: Costs
    budget: Budget
    reserve_s: Callable[[float], float]
    updates: int
    design: Design
    floor_frac: float
    objective: Objective = TIME
    target_design: TargetDesign | None = None
    events_apart: bool = True


@dataclass(kw_only=True)
class SearchState:
    """What a search knows.

    Attributes:
        config: What it was given.
        facts: What is known of the job under the present plan.
        diagnosis: Its bottleneck.
        candidates: What became of each candidate so far.
        plan: The present plan.
        filling_s: Seconds of filling caches beforehand, for each measured update under the present plan.
        phases: Phase shares under the present plan; empty until something was adopted.
        speed: Of the present plan, as a ratio to the plain job, by its screenings.
        newest: The candidate that was adopted last, and so was measured on top of all others; empty for a pair.
    """

    config: SearchConfig
    facts: Facts
    diagnosis: Diagnosis
    candidates: list[Candidate] = field(default_factory=list)
    plan: Plan = EMPTY
    filling_s: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)
    speed: float = 1.0
    newest: str | None = None

    @property
    def update_s(self) -> float:
        """Seconds of an update under the present plan."""
        return self.facts.step_ms / 1e3

    @property
    def trial_update_s(self) -> float:
        """Seconds that a measured update under the present plan costs a trial, filling its caches included."""
        return self.update_s + self.filling_s

    @property
    def turn_updates(self) -> int:
        """Updates per turn: at least those of the plain job, and more as the updates become shorter."""
        return max(self.config.updates, min(int(TURN_S / self.update_s), MAX_TURN_UPDATES))

    def screening_s(self, *optimizations: Optimization) -> float:
        """Seconds of screening these together, set-up included."""
        setup_s = sum(item.card.setup_s for item in optimizations)
        return self.config.costs.screening_s(TURNS, self.turn_updates, self.trial_update_s) + setup_s

    def has_room(self, needed_s: float) -> bool:
        """Whether the budget holds so many seconds besides the final proof."""
        return self.config.budget.left - needed_s >= self.reserve_s()

    def reserve_s(self) -> float:
        """Seconds to keep for the final proof: few as long as there is nothing to prove."""
        usual = self.config.reserve_s(self.trial_update_s)
        least = self.config.costs.least_final_s(self.trial_update_s)
        return (usual if self.plan.names else min(usual, least)) + self.target_reserve_s()

    def target_reserve_s(self) -> float:
        """Seconds of the final proof by time to target, where something in the plan is judged by it."""
        by_target = any(item.card.judged_by is Judge.TIME_TO_TARGET for item in self.plan.optimizations)
        return MIN_PAIRS * self.whole_pair_s(EMPTY) if by_target else 0.0

    def whole_pair_s(self, base: Plan) -> float:
        """Seconds of a pair of whole runs, `base` (the present plan, or the empty one) against the present plan."""
        design, costs = self.config.target_design, self.config.costs
        updates, points = self.facts.job.planned_updates or 0, design.points if design else 0
        base_s, base_updates = self.update_s, float(updates)
        if not base.names:
            base_s, base_updates = costs.base_update_s, updates * self.plan.samples_factor
        return costs.whole_run_s(updates, self.update_s, points) + costs.whole_run_s(round(base_updates), base_s, points)

    def clashes(self, optimization: Optimization) -> str:
        """Why it cannot stand beside the present plan; empty where it can."""
        return next((why for item in self.plan.optimizations if (why := clash(item, optimization))), "")


@dataclass(frozen=True, kw_only=True)
class Adopted:
    """The plan that was just screened becomes the present one.

    Attributes:
        name: The candidate, which becomes the newest; empty for a pair; None where no update tells what it brings.
        speed: By how much it is faster.
        event: What the technique acts on, where that is no update.
        lost_s: Seconds that this event costs since then.
        profiled: Whether it is worth measuring anew where the time goes.
    """

    name: str | None
    speed: float = 1.0
    event: str = ""
    lost_s: float = 0.0
    profiled: bool = True


@dataclass(frozen=True)
class Result:
    """What a strategy found out.

    Attributes:
        candidates: Those whose record is new or has changed.
        adopted: Given where the plan of the challenger is adopted; None where the present one stays.
        quiet: Nobody needs to be told.
    """

    candidates: tuple[Candidate, ...]
    adopted: Adopted | None = None
    quiet: bool = False


Results: TypeAlias = Generator[Result, None, None]
