"""The ladder: one candidate at a time, driven by the bottleneck and the measured ceilings; then each rung taken out once.

Nothing vanishes: a candidate that does not fit, cannot bring enough, fails, harms or was not reached is a rung as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from upshift.core.errors import TrialError
from upshift.core.facts import Facts, JobFacts
from upshift.core.optimization import Card, Optimization, clash
from upshift.core.plan import Plan
from upshift.core.stats import Verdict
from upshift.profile.diagnosis import Diagnosis, diagnose
from upshift.tune.arms import Design
from upshift.tune.budget import Budget, Costs
from upshift.tune.compare import compare
from upshift.tune.decide import Given, decide, needs_confirmation
from upshift.tune.objective import Goal, Objective
from upshift.tune.rung import Outcome, Rung, break_even_updates
from upshift.tune.screen import TURNS, Screen, Screening

NOT_TRIED = "not tried"
MEMORY_SHORT = 0.8
BOTTLENECK_BONUS = 2.0
CONFIRM_UPDATES_S = 1.5
QUICK_SLICE_S = 0.6
TURN_S = 0.8
MAX_TURN_UPDATES = 200


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
        rungs: What became of each candidate so far.
        phases: Phase shares under the present plan; empty until something was kept.
        speed: Of the present plan, as a ratio to the plain job, by its screenings.
        newest: The rung that was kept last, and so measured on top of all others; empty for a pair, None where unknown.
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
    rungs: list[Rung] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=dict)
    speed: float = 1.0
    newest: str | None = None

    @property
    def update_s(self) -> float:
        """Seconds of an update under the present plan."""
        return self.facts.step_ms / 1e3

    @property
    def turn_updates(self) -> int:
        """Updates per turn: at least those of the plain job, and more as the updates become shorter."""
        return max(self.updates, min(int(TURN_S / self.update_s), MAX_TURN_UPDATES))

    def _reserve_s(self) -> float:
        """What must be left for the proof: little as long as there is nothing to prove."""
        usual = self.reserve_s(self.update_s)
        return usual if self.screen.plan.names else min(usual, self.costs.final_s(0.0, self.update_s))

    def climb(self) -> None:
        """Try candidates until none is left or the time is up."""
        while True:
            fits = self._candidates()
            if not fits:
                break
            _, optimization, max_gain = fits[0]
            needed = self.costs.screening_s(TURNS, self.turn_updates, self.update_s) + optimization.card.setup_s
            if self.budget.left - needed < self._reserve_s():
                why = f"{NOT_TRIED}: it needs about {needed:.0f} s and the budget must keep enough for the final proof"
                self._note(optimization, "undecided", why, predicted=max_gain)
                continue
            self._try(optimization, max_gain)
        self._try_pairs()
        self._note_unfit()

    def prune(self) -> None:
        """Take every kept rung but the newest out once; what no longer pays leaves the plan. A pair is split here."""
        kept = [rung for rung in self.rungs if rung.outcome == "applied" and rung.name in self._prunable()]
        just_measured = kept[-1].name if kept and self.newest is None else self.newest
        older = [rung for rung in kept if rung.name != just_measured]
        for rung in sorted(older, key=lambda item: (item.comparison or {}).get("ratio") or 1.0):
            needed = self.costs.screening_s(TURNS, self.turn_updates, self.update_s) * 1.5
            if rung.setup_seconds:
                needed += rung.setup_seconds
            if len(self.screen.plan.names) < 2 or self.budget.left - needed < self._reserve_s():
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
        """Names in the plan that must pay with time; what was kept for its memory pays with memory."""
        if self.objective.goal is Goal.MEMORY:
            return set()
        return {item.card.name for item in self.screen.plan.optimizations if not item.card.memory_technique}

    def _candidates(self) -> list[tuple[float, Optimization, float]]:
        """What fits now and was not tried, best first: (score, optimization, max gain)."""
        found = []
        for name, kind in self.catalogue.items():
            if name in self.screen.plan.names:
                continue
            fit = kind.fit(self.facts)
            if not fit.fits or self._blocked(kind, fit.max_gain):
                continue
            for position, setting in enumerate(fit.settings):
                if any(rung.is_about(setting) for rung in self.rungs) or self._clashes(setting):
                    continue
                found.append((self._score(kind.card, fit.max_gain) / (1 + position), setting, fit.max_gain))
        return sorted(found, key=lambda item: -item[0])

    def _score(self, card: Card, max_gain: float) -> float:
        """How soon to try it: ceiling times prior; for memory what costs no time goes first."""
        if self.objective.goal is Goal.MEMORY:
            return card.prior + (0.0 if card.memory_technique else 1.0)
        bonus = BOTTLENECK_BONUS if card.relieves is self.diagnosis.name else 1.0
        return math.log(max_gain) * card.prior * bonus

    def _blocked(self, kind: type[Optimization], max_gain: float) -> bool:
        """Whether it cannot bring enough, by its ceiling; memory techniques are let in only where memory is short."""
        if self.objective.goal is Goal.MEMORY:
            return not kind.card.saves_memory
        if kind.card.memory_technique:
            return not self._memory_short()
        return max_gain < 1.0 + self.screen.floor_frac

    def _memory_short(self) -> bool:
        return self.facts.peak_memory_bytes > MEMORY_SHORT * self.facts.memory_limit_bytes

    def _clashes(self, optimization: Optimization) -> str:
        return next((why for item in self.screen.plan.optimizations if (why := clash(item, optimization))), "")

    def _try(self, optimization: Optimization, max_gain: float) -> None:
        name = optimization.card.name
        self.say(f"trying {name} {_brief(optimization)}".rstrip())
        plan = self.screen.plan.plus(optimization)
        updates = self.turn_updates * (2 if "order" in optimization.card.claims else 1)
        try:
            screening = self.screen.screen(optimization, plan, updates)
        except TrialError as error:
            self._note_failure(optimization, error, max_gain)
            return
        outcome, reason = self._decide(optimization, screening)
        if outcome == "applied" and needs_confirmation(screening.comparison, self.objective):
            outcome, reason = self._confirm(optimization, plan, screening)
        rung = self._note(optimization, outcome, reason, predicted=max_gain, screening=screening)
        if rung.outcome == "applied":
            self.newest = rung.name
            self.speed *= screening.comparison.interval.ratio if screening.comparison.interval else 1.0
            self.screen.promote()
            self.refresh()

    def _try_pairs(self) -> None:
        """Try together what may only pay together, where each was harmless alone and brought too little."""
        if self.objective.goal is Goal.MEMORY:
            return
        for rung in list(self.rungs):
            for name in self.catalogue[rung.name].card.pays_with if rung.name in self.catalogue else ():
                partner = next((other for other in self.rungs if other.name == name and _brought_nothing(other)), None)
                if partner is not None and _brought_nothing(rung):
                    self._try_pair(rung, partner)

    def _try_pair(self, rung: Rung, partner: Rung) -> None:
        one, other = (self.catalogue[item.name](**item.settings) for item in (rung, partner))
        needed = 2 * self.costs.screening_s(TURNS, self.turn_updates, self.update_s) + one.card.setup_s + other.card.setup_s
        if self._clashes(one) or self._clashes(other):
            return
        if self.budget.left - needed < self._reserve_s():
            rung.reason += f"; together with {partner.name}: {NOT_TRIED}, the budget must keep enough for the final proof"
            return
        self.say(f"trying {rung.name} together with {partner.name}")
        plan = self.screen.plan.plus(one).plus(other)
        try:
            screening = self.screen.screen(one, plan, self.turn_updates, beside=other)
        except TrialError as error:
            for item, beside in ((rung, partner), (partner, rung)):
                item.reason += f"; together with {beside.name} the trial failed ({error.kind.replace('_', ' ')})"
            return
        outcome, reason = self._decide(one, screening)
        if outcome == "applied" and needs_confirmation(screening.comparison, self.objective):
            outcome, reason = self._confirm(one, plan, screening)
        self.say(f"{outcome}: {rung.name} together with {partner.name}: {reason}")
        for item, beside in ((rung, partner), (partner, rung)):
            item.reason += f"; together with {beside.name}: {reason}"
            if outcome == "applied":
                self._fill(item, screening)
                item.outcome = "applied"
        if outcome == "applied":
            self.newest = ""
            self.screen.promote()
            self.refresh()
        self.save()

    def _note_failure(self, optimization: Optimization, error: TrialError, max_gain: float) -> None:
        """A dead trial is a failure; a loss that broke, where the base's did not, is the numerics gate's no."""
        if error.kind != "nan":
            self._note(optimization, "failed", f"{error.kind.replace('_', ' ')}: {error}", predicted=max_gain)
            return
        why = f"the loss broke where the plan without it stays finite: {error}"
        rung = self._note(optimization, "refused", f"the numerics gate says no: {why}", predicted=max_gain)
        rung.numerics = {"class": str(optimization.card.numerics), "verdict": "failed", "why": why}
        self.save()

    def _decide(self, optimization: Optimization, screening: Screening) -> tuple[Outcome, str]:
        given = Given(
            objective=self.objective, floor_frac=self.screen.floor_frac, speed=self.speed, update_s=self.update_s,
            planned_updates=self.facts.job.planned_updates,
        )  # fmt: skip
        return decide(optimization, screening, given)

    def _confirm(self, optimization: Optimization, plan: Plan, screening: Screening) -> tuple[Any, str]:
        """Fresh processes decide over a small gain; without the time for them it stays undecided."""
        updates = min(max(int(CONFIRM_UPDATES_S / self.update_s), 3 * self.updates), 400)
        pair_s = 2 * self.costs.start_s + 2 * (updates + 4) * self.update_s
        screened = screening.comparison.interval
        gain = f"{screened.ratio:.2f}x" if screened else "a gain"
        if self.budget.left - 5 * pair_s - 2 * optimization.card.setup_s < self.reserve_s(self.update_s):
            return (
                "undecided",
                f"{gain} in turns is too small to trust without fresh processes, and the budget has no room for them",
            )
        self.say(f"confirming {optimization.card.name} with fresh processes")
        design = Design(
            updates=updates, uneven=self.design.uneven, seed=self.design.seed, looks=(5,),
            deadline=self.budget.deadline - self.reserve_s(self.update_s), min_floor_frac=self.design.min_floor_frac,
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

    def refresh(self) -> None:
        """Measure the bottleneck again under the present plan."""
        self.say("measuring again where the time goes")
        answer = self.screen.profile(slice_s=QUICK_SLICE_S, quick=True)
        old = self.facts
        sent = answer["facts"]
        kept = {name: getattr(old, name) for name in ("op_frac", "op_counts", "bf16_matmul_gain")}
        self.facts = Facts(machine=old.machine, job=JobFacts(**_job(answer)), **{**sent, **kept})
        found = diagnose(answer["profile"]["phases"], sent["ceilings"], wait_frac=sent["input_wait_frac"])
        self.diagnosis = found
        around = ("validation", "checkpoint")  # not measured again
        self.phases = {name: share for name, share in answer["profile"]["phases"].items() if name not in around}
        self.say(f"now: {found.words}")

    def _note(
        self, optimization: Optimization, outcome: Any, reason: str, *, predicted: float, screening: Screening | None = None
    ) -> Rung:
        rung = Rung(
            name=optimization.card.name,
            settings=optimization.settings(),
            outcome=outcome,
            reason=reason,
            predicted_max_gain=predicted,
        )
        if screening is not None:
            self._fill(rung, screening)
        self.rungs.append(rung)
        self.say(f"{outcome}: {rung.name}: {reason}")
        self.save()
        return rung

    def _fill(self, rung: Rung, screening: Screening) -> None:
        """Put what a screening gave into its rung."""
        interval = screening.comparison.interval
        rung.comparison = screening.comparison.to_dict() if interval else None
        if interval is None:
            rung.unused_samples = [sample.to_dict() for sample in screening.comparison.samples]
        rung.evidence = screening.evidence
        rung.setup_seconds = screening.setup_s
        if interval:
            rung.break_even_updates = break_even_updates(screening.setup_s, self.update_s, self.update_s / interval.ratio)
        if screening.gate:
            gate = screening.gate
            rung.numerics = {"class": str(gate.numerics), "verdict": gate.verdict, "why": gate.why}
            if self.screen.challenger is not None:
                rung.numerics["baseline_losses"] = list(self.screen.base.losses)
                rung.numerics["candidate_losses"] = list(self.screen.challenger.losses)
        if screening.peak_bytes.get("A"):
            rung.memory_ratio = screening.peak_bytes["B"] / screening.peak_bytes["A"]

    def _note_unfit(self) -> None:
        """Every candidate that was never tried is a rung too, with the reason of the last look."""
        for name, kind in self.catalogue.items():
            if name in self.screen.plan.names or any(rung.name == name for rung in self.rungs):
                continue
            fit = kind.fit(self.facts)
            settings = fit.settings[0].settings() if fit.settings else {}
            reason = fit.reason or self._why_blocked(kind, fit.max_gain, fit.settings)
            predicted = fit.max_gain if fit.fits else None
            rung = Rung(name=name, settings=settings, outcome="refused", reason=reason, predicted_max_gain=predicted)
            self.rungs.append(rung)
        self.save()

    def _why_blocked(self, kind: type[Optimization], max_gain: float, settings: tuple[Optimization, ...]) -> str:
        if self.objective.goal is Goal.MEMORY and not kind.card.saves_memory:
            return "it lowers no peak memory, which is what is wanted"
        if kind.card.memory_technique:
            peak, limit = self.facts.peak_memory_bytes / 2**30, self.facts.memory_limit_bytes / 2**30
            return f"it buys memory with time, and memory is not short: {peak:.1f} of {limit:.1f} GiB at the peak"
        if why := next((self._clashes(item) for item in settings if self._clashes(item)), ""):
            return why
        floor = self.screen.floor_frac
        return (
            f"by its measured ceiling it could bring {max_gain:.2f}x at most, and less than {floor:.1%} cannot be told here"
        )


def _brought_nothing(rung: Rung) -> bool:
    """Whether a candidate was tried and passed every gate, but was no faster by itself."""
    passed = bool(rung.numerics) and (rung.numerics or {})["verdict"] == "passed"
    return passed and rung.comparison is not None and rung.outcome in ("refused", "undecided")


def _job(answer: Mapping[str, Any]) -> dict[str, Any]:
    job = dict(answer["profile"]["job"])
    job["param_dtypes"] = tuple(job["param_dtypes"])
    return job


def _brief(optimization: Optimization) -> str:
    return ", ".join(f"{name}={value}" for name, value in optimization.settings().items())
