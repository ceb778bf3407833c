"""The ladder: one candidate at a time, driven by the bottleneck and the measured ceilings; then each rung taken out once.

Nothing vanishes: a candidate that does not fit, cannot bring enough, fails, harms or was not reached is a rung as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hasten.core.card import Card, Judge
from hasten.core.errors import TrialError
from hasten.core.facts import Facts, JobFacts
from hasten.core.optimization import Fit, Optimization, clash
from hasten.core.plan import Plan
from hasten.core.stats import Verdict
from hasten.profile.diagnosis import Diagnosis, diagnose
from hasten.tune.budget import Budget, Costs
from hasten.tune.objective import Goal, Objective
from hasten.tune.proof.compare import compare
from hasten.tune.proof.time_to_target import MIN_PAIRS
from hasten.tune.proof.whole_runs import TargetDesign
from hasten.tune.search.by_epoch import try_events
from hasten.tune.search.by_target import try_to_target
from hasten.tune.search.by_update import attempt
from hasten.tune.search.candidate import Candidate, Outcome
from hasten.tune.search.event_design import kept_event_facts
from hasten.tune.search.noting import fill, no_time, note_unfit, rung_of
from hasten.tune.search.screening import TURNS, Screen, Screening
from hasten.tune.search.second_look import try_again
from hasten.tune.search.together import try_pairs
from hasten.tune.search.verdict import Given, decide
from hasten.tune.trials.pair import Design

MEMORY_SHORT = 0.8
BOTTLENECK_BONUS = 2.0
CONFIRM_UPDATES_S = 1.5
QUICK_SLICE_S = 0.6
TURN_S = 0.8
MAX_TURN_UPDATES = 200
CONFIRM_LOOKS = (5, 8)
"""Pairs over a small gain: where five leave it open, three more cost less than a gain that is never had."""
EMPTY = Plan()


@dataclass(kw_only=True)
class Ladder:
    """Climbs.

    Attributes:
        catalogue: The candidates.
        facts: What is known of the job under the present plan.
        diagnosis: Its bottleneck.
        screen: The resident processes.
        costs: What things cost here.
        budget: The time budget.
        reserve_s: What must be left for the final comparison.
        updates: Updates per turn of the plain job.
        design: For confirming small gains with fresh processes.
        save: Called with every new rung.
        say: Told what is going on.
        objective: What is wanted.
        target_design: How whole runs are compared by time to target; None where there is no held-out metric.
        rungs: What became of each candidate so far.
        phases: Phase shares under the present plan; empty until something was kept.
        speed: Of the present plan, as a ratio to the plain job, by its screenings.
        newest: The rung that was kept last, and so measured on top of all others; empty for a pair, None where unknown.
        events_apart: What acts on an event is measured by that event; else the events fall into the updates that are timed.
    """

    catalogue: Mapping[str, type[Optimization]]
    facts: Facts
    diagnosis: Diagnosis
    screen: Screen
    costs: Costs
    budget: Budget
    reserve_s: Callable[[float], float]
    updates: int
    design: Design
    save: Callable[[], None]
    say: Callable[[str], None]
    objective: Objective = field(default_factory=Objective)
    target_design: TargetDesign | None = None
    rungs: list[Candidate] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=dict)
    speed: float = 1.0
    newest: str | None = None
    events_apart: bool = True

    @property
    def update_s(self) -> float:
        """Seconds of an update under the present plan."""
        return self.facts.step_ms / 1e3

    @property
    def trial_update_s(self) -> float:
        """What a measured update under the present plan costs a trial: its caches are filled for it beforehand."""
        return self.update_s + self.screen.filling_s

    @property
    def turn_updates(self) -> int:
        """Updates per turn: at least those of the plain job, and more as the updates become shorter."""
        return max(self.updates, min(int(TURN_S / self.update_s), MAX_TURN_UPDATES))

    def reserve(self) -> float:
        """What must be left for the proof: little as long as there is nothing to prove."""
        usual = self.reserve_s(self.trial_update_s)
        least = self.costs.least_final_s(self.trial_update_s)
        return (usual if self.screen.plan.names else min(usual, least)) + self.target_reserve_s()

    def target_reserve_s(self) -> float:
        """What the proof by time to target will need, where something that was kept is judged by it."""
        kept = any(item.card.judged_by is Judge.TIME_TO_TARGET for item in self.screen.plan.optimizations)
        return MIN_PAIRS * self.whole_pair_s(EMPTY) if kept else 0.0

    def whole_pair_s(self, base: Plan) -> float:
        """Seconds of a pair of whole runs, `base` against the present plan."""
        updates, points = self.facts.job.planned_updates or 0, self.target_design.points if self.target_design else 0
        base_s, base_updates = self.update_s, float(updates)
        if not base.names:
            base_s, base_updates = self.costs.base_update_s, updates * self.screen.plan.samples_factor
        return self.costs.whole_run_s(updates, self.update_s, points) + self.costs.whole_run_s(
            round(base_updates), base_s, points
        )

    def climb(self) -> None:
        """Try candidates until none is left or the time is up."""
        while True:
            fits = self.candidates()
            if not fits:
                break
            _, optimization, max_gain = fits[0]
            needed = self.costs.screening_s(TURNS, self.turn_updates, self.trial_update_s) + optimization.card.setup_s
            if self.budget.left - needed < self.reserve():
                why = no_time(needed)
                self.note(optimization, "undecided", why, predicted=max_gain)
                continue
            attempt(self, optimization, max_gain)
        try_pairs(self)
        try_again(self)
        try_events(self)
        try_to_target(self)
        note_unfit(self)

    def prune(self) -> None:
        """Take every kept rung but the newest out once; what no longer pays leaves the plan. A pair is split here."""
        kept = [rung for rung in self.rungs if rung.outcome == "applied" and rung.name in self._prunable()]
        just_measured = kept[-1].name if kept and self.newest is None else self.newest
        older = [rung for rung in kept if rung.name != just_measured]
        for rung in sorted(older, key=lambda item: (item.comparison or {}).get("ratio") or 1.0):
            needed = self.costs.screening_s(TURNS, self.turn_updates, self.trial_update_s) * 1.5
            if rung.setup_seconds:
                needed += rung.setup_seconds
            if len(self.screen.plan.names) < 2 or self.budget.left - needed < self.reserve():
                continue
            self.say(f"does {rung.name} still pay?")
            plan = self.screen.plan.minus(rung.name)
            try:
                without = self.screen.screen(None, plan, self.turn_updates).comparison
            except TrialError as error:
                rung.reason += f"; the plan without it could not be measured: {error}"
                continue
            if without.interval is not None and without.verdict in (Verdict.SAME, Verdict.FASTER):
                rung.outcome = "pruned"
                rung.reason = f"no longer pays beside the others: without it the job runs at {without.interval.ratio:.2f}x"
                self.screen.promote()
            elif without.interval is not None:
                rung.reason += f"; without it the job runs at {without.interval.ratio:.2f}x"
            self.save()

    def _prunable(self) -> set[str]:
        """Names in the plan that must pay with the time of an update; what was kept for its memory pays with memory."""
        if self.objective.goal is Goal.MEMORY:
            return set()
        items = self.screen.plan.optimizations
        by_time = (item.card for item in items if item.card.judged_by is Judge.UPDATE_TIME)
        return {card.name for card in by_time if not (card.memory_technique or self.is_apart(card))}

    def candidates(
        self, judge: Judge = Judge.UPDATE_TIME, *, events: bool = False
    ) -> list[tuple[float, Optimization, float]]:
        """What fits now, is judged so and was not tried, best first: (score, optimization, max gain).

        Args:
            judge: What decides whether it pays.
            events: Those that act on an event around the updates, instead of those that act on updates.
        """
        found = []
        for name, kind in self.catalogue.items():
            card = kind.card
            if name in self.screen.plan.names or card.judged_by is not judge or self.is_apart(card) is not events:
                continue
            fit = kind.fit(self.facts)
            if not fit.fits or self._blocked(kind, fit.max_gain):
                continue
            for position, setting in enumerate(fit.settings):
                if any(rung.is_about(setting) for rung in self.rungs) or self.clashes(setting):
                    continue
                found.append((self._score(card, fit) / (1 + position), setting, fit.max_gain))
        return sorted(found, key=lambda item: -item[0])

    def is_apart(self, card: Card) -> bool:
        """Whether a technique is measured by an event around the updates."""
        return self.events_apart and bool(card.event)

    def _score(self, card: Card, fit: Fit) -> float:
        """How soon to try it: ceiling times prior; for memory what costs no time goes first."""
        if self.objective.goal is Goal.MEMORY:
            return card.prior + (0.0 if card.memory_technique else 1.0)
        if card.judged_by is Judge.TIME_TO_TARGET:
            return card.prior
        bonus = BOTTLENECK_BONUS if card.relieves is self.diagnosis.name else 1.0
        return math.log(fit.max_gain) * (card.prior if fit.prior is None else fit.prior) * bonus

    def _blocked(self, kind: type[Optimization], max_gain: float) -> bool:
        """Whether it cannot bring enough, by its ceiling; memory techniques are let in only where memory is short."""
        if self.objective.goal is Goal.MEMORY:
            return not kind.card.saves_memory
        if kind.card.memory_technique:
            return not self._memory_short()
        if kind.card.judged_by is Judge.TIME_TO_TARGET:  # what an update teaches has no ceiling in its phases
            return False
        return max_gain < 1.0 + self.screen.floor_frac

    def _memory_short(self) -> bool:
        return self.facts.peak_memory_bytes > MEMORY_SHORT * self.facts.memory_limit_bytes

    def clashes(self, optimization: Optimization) -> str:
        """Why it cannot stand beside what was kept; empty where it can."""
        return next((why for item in self.screen.plan.optimizations if (why := clash(item, optimization))), "")

    def keep(self, rung: Candidate, screening: Screening) -> None:
        """Go on with the plan that was just screened."""
        self.newest = rung.name
        self.speed *= screening.comparison.interval.ratio if screening.comparison.interval else 1.0
        self.screen.promote()
        self.refresh()

    def note_failure(self, optimization: Optimization, error: TrialError, max_gain: float | None = None) -> None:
        """A dead trial is a failure; a loss that broke, where the base's did not, is the numerics gate's no."""
        if error.kind != "nan":
            self.note(optimization, "failed", f"{error.kind.replace('_', ' ')}: {error}", predicted=max_gain)
            return
        why = f"the loss broke where the plan without it stays finite: {error}"
        rung = self.note(optimization, "refused", f"the numerics gate says no: {why}", predicted=max_gain)
        rung.numerics = {"class": str(optimization.numerics), "verdict": "failed", "why": why}
        self.save()

    def decide(self, optimization: Optimization, screening: Screening) -> tuple[Outcome, str]:
        """The outcome of a screening under the present plan, and why."""
        given = Given(
            objective=self.objective, floor_frac=self.screen.floor_frac, speed=self.speed, update_s=self.update_s,
            planned_updates=self.facts.job.planned_updates,
        )  # fmt: skip
        return decide(optimization, screening, given)

    def confirming_s(self, optimization: Optimization, seconds: float = CONFIRM_UPDATES_S) -> float:
        """What fresh processes over a small gain take, in seconds."""
        pair_s = 2 * self.costs.start_s + 2 * (self._confirming_updates(seconds) + 4) * self.update_s
        return CONFIRM_LOOKS[0] * pair_s + 2 * optimization.card.setup_s

    def _confirming_updates(self, seconds: float) -> int:
        return min(max(int(seconds / self.update_s), 3 * self.updates), 400)

    def confirm(
        self, optimization: Optimization, plan: Plan, screening: Screening, *, seconds: float = CONFIRM_UPDATES_S
    ) -> tuple[Outcome, str]:
        """Fresh processes decide over a small gain; without the time for them it stays undecided.

        Args:
            optimization: What is in question.
            plan: The present plan with it.
            screening: Shows the gain; its comparison is replaced.
            seconds: Of updates that each process counts, about.
        """
        updates = self._confirming_updates(seconds)
        screened = screening.comparison.interval
        gain = f"{screened.ratio:.2f}x" if screened else "a gain"
        if self.budget.left - self.confirming_s(optimization, seconds) < self.reserve_s(self.trial_update_s):
            return (
                "undecided",
                f"{gain} in turns is too small to trust without fresh processes, and the budget has no room for them",
            )
        self.say(f"confirming {optimization.card.name} with fresh processes")
        design = Design(
            updates=updates, uneven=self.design.uneven, seed=self.design.seed, looks=CONFIRM_LOOKS,
            deadline=self.budget.deadline - self.reserve_s(self.trial_update_s), min_floor_frac=self.design.min_floor_frac,
            turns=self.design.turns,
        )  # fmt: skip
        for resident in (self.screen.base, self.screen.challenger):
            if resident is not None:
                resident.trial.freeze()
        try:
            found = compare(self.screen.setting, self.screen.plan, plan, design)
        except TrialError as error:
            return "failed", f"{error.kind.replace('_', ' ')}: {error}"
        screening.comparison = found
        if found.interval is None or found.verdict is Verdict.UNDECIDED:
            return "undecided", f"{gain} in turns, but fresh processes leave it open: {found.why}"
        seen = f"{found.interval.ratio:.2f}x ({found.interval.low:.2f} to {found.interval.high:.2f})"
        if found.verdict is Verdict.FASTER:
            return "applied", f"faster, confirmed by fresh processes: {seen}"
        return "refused", f"{gain} in turns did not hold in fresh processes: {seen}"

    def refresh(self, *, event: str = "", lost_s: float = 0.0) -> None:
        """Measure the bottleneck again under the present plan.

        Args:
            event: What the technique that was just kept acts on, where that is no update.
            lost_s: Seconds that this event costs since then.
        """
        self.say("measuring again where the time goes")
        answer = self.screen.profile(slice_s=QUICK_SLICE_S, quick=True)
        old = self.facts
        sent = answer["facts"]
        kept = {name: getattr(old, name) for name in ("op_frac", "op_counts", "bf16_matmul_gain", "form_gains")}
        kept |= kept_event_facts(old, sent["step_ms"], event=event, lost_s=lost_s)
        self.facts = Facts(machine=old.machine, job=JobFacts(**answer["profile"]["job"]), **{**sent, **kept})
        found = diagnose(
            answer["profile"]["phases"], sent["ceilings"], wait_frac=sent["input_wait_frac"], straggler=sent["straggler"]
        )
        self.diagnosis = found
        around = ("validation", "checkpoint")  # not measured again
        self.phases = {name: share for name, share in answer["profile"]["phases"].items() if name not in around}
        self.say(f"now: {found.words}")

    def note(
        self,
        optimization: Optimization,
        outcome: Outcome,
        reason: str,
        *,
        predicted: float | None = None,
        screening: Screening | None = None,
    ) -> Candidate:
        """Record what became of a candidate."""
        rung = rung_of(optimization, outcome, reason, predicted)
        if screening is not None:
            self.fill(rung, screening)
        self.add(rung)
        return rung

    def fill(self, rung: Candidate, screening: Screening) -> None:
        """Put into a rung what the screening gave that was just made."""
        fill(rung, screening, self.screen, self.update_s)

    def add(self, rung: Candidate) -> None:
        """Record a rung."""
        self.rungs.append(rung)
        self.say(f"{rung.outcome}: {rung.name}: {rung.reason}")
        self.save()
