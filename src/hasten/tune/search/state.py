"""The state of a search: its fixed configuration, what is known now, and the results that strategies return.

A strategy is a generator: it reads the state, runs trials, and yields one `Result` after the other. Only the search
(`search.py`) changes the state, after each result, so a strategy sees the new plan when it continues.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
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
"""Approximate length of a turn in seconds."""
MAX_TURN_UPDATES = 200
EMPTY = Plan()


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """The fixed configuration of a search.

    Attributes:
        catalogue: The techniques to choose from.
        costs: What the steps of a tuning cost.
        budget: The time budget.
        reserve_s: Seconds to reserve for the final proof, given what steps cost and the seconds of an update under the plan.
        updates: Updates per turn of the plain job.
        design: How fresh processes confirm a small gain.
        floor_frac: The noise floor: the smallest difference that can be detected.
        objective: What to improve.
        target_design: How whole runs are compared by time to target; None without a held-out metric.
        events_apart: Whether reports, checkpoints and validation are measured separately from the updates.
    """

    catalogue: Mapping[str, type[Optimization]]
    costs: Costs
    budget: Budget
    reserve_s: Callable[[Costs, float], float]
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
        config: The configuration.
        facts: The facts about the job under the current plan.
        diagnosis: The bottleneck under the current plan.
        candidates: The current record of each candidate.
        plan: The current plan.
        filling_s: Seconds of cache filling per measured update under the current plan.
        warming_s: Seconds that a process under the current plan needs longer than a plain one to reach full speed.
        phases: Phase shares under the current plan; empty until a candidate was adopted.
        speed: Speed of the current plan as a ratio to the plain job, from its screenings.
        newest: The last adopted candidate, which was measured on top of all others; empty for a pair.
    """

    config: SearchConfig
    facts: Facts
    diagnosis: Diagnosis
    candidates: list[Candidate] = field(default_factory=list)
    plan: Plan = EMPTY
    filling_s: float = 0.0
    warming_s: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)
    speed: float = 1.0
    newest: str | None = None

    @property
    def costs(self) -> Costs:
        """What steps cost under the current plan."""
        return replace(self.config.costs, warming_s=self.warming_s)

    @property
    def update_s(self) -> float:
        """Seconds of an update under the current plan."""
        return self.facts.step_ms / 1e3

    @property
    def trial_update_s(self) -> float:
        """Seconds that a measured update under the current plan costs a trial, including cache filling."""
        return self.update_s + self.filling_s

    @property
    def turn_updates(self) -> int:
        """Updates per turn: at least those of the plain job, and more as updates become shorter."""
        return max(self.config.updates, min(int(TURN_S / self.update_s), MAX_TURN_UPDATES))

    def screening_s(self, *optimizations: Optimization) -> float:
        """Return the seconds of screening these techniques together, set-up included."""
        setup_s = sum(item.card.setup_s for item in optimizations)
        warming_s = self.warming_s * (2 if self.facts.job.in_script else 1)  # both processes of a script start again
        return self.costs.screening_s(TURNS, self.turn_updates, self.trial_update_s) + setup_s + warming_s

    def has_room(self, needed_s: float) -> bool:
        """Return whether the budget has room for `needed_s` seconds besides the final proof."""
        return self.config.budget.left - needed_s >= self.reserve_s()

    def reserve_s(self) -> float:
        """Return the seconds to reserve for the final proof; few while there is nothing to prove."""
        usual = self.config.reserve_s(self.costs, self.trial_update_s)
        least = self.costs.least_final_s(self.trial_update_s)
        return (usual if self.plan.names else min(usual, least)) + self.target_reserve_s()

    def target_reserve_s(self) -> float:
        """Return the seconds of the final proof by time to target, if the plan contains a technique judged by it."""
        by_target = any(item.card.judged_by is Judge.TIME_TO_TARGET for item in self.plan.optimizations)
        return MIN_PAIRS * self.whole_pair_s(EMPTY) if by_target else 0.0

    def whole_pair_s(self, base: Plan) -> float:
        """Return the seconds of a pair of whole runs: `base` (the current or the empty plan) against the current plan."""
        design, costs = self.config.target_design, self.config.costs
        updates, points = self.facts.job.planned_updates or 0, design.points if design else 0
        base_s, base_updates = self.update_s, float(updates)
        if not base.names:
            base_s, base_updates = costs.base_update_s, updates * self.plan.samples_factor
        return costs.whole_run_s(updates, self.update_s, points) + costs.whole_run_s(round(base_updates), base_s, points)

    def clashes(self, optimization: Optimization) -> str:
        """Return why a technique conflicts with the current plan; empty if it does not."""
        return next((why for item in self.plan.optimizations if (why := clash(item, optimization))), "")


@dataclass(frozen=True, kw_only=True)
class Adopted:
    """The plan that was just screened becomes the current one.

    Attributes:
        name: The candidate, which becomes the newest; empty for a pair; None if update times do not show its gain.
        speed: Its speed as a ratio to the previous plan.
        event: The event that the technique acts on, if it does not act on updates.
        lost_s: Seconds that this event costs from now on.
        warming_s: Seconds that each process needs longer to reach full speed.
        profiled: Whether to measure again where the time goes.
    """

    name: str | None
    speed: float = 1.0
    event: str = ""
    lost_s: float = 0.0
    warming_s: float = 0.0
    profiled: bool = True


@dataclass(frozen=True)
class Result:
    """A result of a strategy.

    Attributes:
        candidates: Those whose record is new or has changed.
        adopted: Set if the challenger's plan is adopted; None if the current plan stays.
        quiet: Whether to record the result without a message.
    """

    candidates: tuple[Candidate, ...]
    adopted: Adopted | None = None
    quiet: bool = False


Results: TypeAlias = Generator[Result, None, None]
