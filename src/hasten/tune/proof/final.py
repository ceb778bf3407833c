"""The final proof: the plain job against the whole plan, in fresh processes. Unproved techniques are removed from the plan.

A plan is tested up to three times. Techniques judged by time to target stay only if pairs of whole runs say `faster`.
Techniques that change the mathematics stay only if the held-out metric is proved not to be worse; otherwise they are dropped
and the rest is proved alone. And the plan as a whole must make updates faster (or save memory, if that is the goal).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

from hasten.core.card import Judge, Numerics
from hasten.core.errors import TrialError
from hasten.core.job import Quality
from hasten.core.plan import Plan
from hasten.core.stats import LOOKS, NonInferiority, Verdict, metric_words, seeds_needed
from hasten.report.evidence import Candidate, Outcome
from hasten.report.words import outcome_line
from hasten.tune.budget import REPORT_S, Budget, Costs
from hasten.tune.objective import MEMORY_PROVED_FRAC, Goal, Objective
from hasten.tune.proof.compare import Comparison, compare, held_out_verdict
from hasten.tune.proof.time_to_target import MIN_PAIRS, TargetComparison, pair_words
from hasten.tune.proof.whole_runs import compare_to_target, planned_looks
from hasten.tune.record import Record, final_of, quality_result, with_numerics
from hasten.tune.search.state import EMPTY, SearchState
from hasten.tune.search.verdict import MEMORY_SAVED
from hasten.tune.trials.pair import Design
from hasten.tune.trials.trial import TrialSetting

MIN_UPDATES = 4
"""Minimum number of updates per process."""
FIRST_PROOF_FRAC = 0.6
"""Share of the remaining time for the first proof if the plan changes the mathematics: the rest may need a second proof."""
NO_ROOM = "the budget has no room left for the final proof by time to target"


@dataclass(frozen=True, kw_only=True)
class FinalProof:
    """Proves the plan of a record, and removes techniques that are not proved.

    Attributes:
        setting: Settings that all trials share.
        record: The candidates and their plan; it stores the proof.
        design: How pairs are run; `quality` defines "not worse", None if nothing does.
        costs: What the steps of a tuning cost.
        budget: The time budget.
        objective: What to improve.
        events_apart: Whether techniques for reports, checkpoints or validation were measured separately from the updates.
        planned_updates: Updates of the whole run; None if unknown.
        most_updates: Maximum updates of each process; None for no limit.
        updates_of_ended: Returns this maximum if a trial failed because the script ended for the first time; otherwise None.
        say: Called with a message at each step.
    """

    setting: TrialSetting
    record: Record
    design: Design
    costs: Costs
    budget: Budget
    objective: Objective
    events_apart: bool = True
    planned_updates: int | None = None
    most_updates: int | None = None
    updates_of_ended: Callable[[TrialError], int | None] = lambda _: None
    say: Callable[[str], None] = lambda _: None

    def prove(self, state: SearchState) -> None:
        """Prove the applied candidates, given the state of the search at its end.

        Raises:
            TrialError: A trial of the proof failed.
        """
        plan = self.record.applied_plan()
        if not plan.optimizations:
            if any(item.tried for item in self.record.candidates):
                self.say("no technique was kept, so there is nothing to prove")
            return
        tuned_s = state.trial_update_s / plan.samples_factor  # per update of the job's own number of samples
        reached = self._prove_to_target(state)
        plan = self.record.applied_plan()
        if not plan.optimizations:
            return
        if reached is None:
            self._prove_by_update(plan, tuned_s)
            return
        # The quality was judged over whole runs. A short run would judge a schedule by its warm-up.
        comparison, _ = self._compare(replace(self.design, quality=None), plan, tuned_s)
        self._adopt(plan, comparison, reached.held_out, reached)

    # By time to target.

    def _prove_to_target(self, state: SearchState) -> TargetComparison | None:
        """Compare whole runs. Returns None if nothing is judged by time to target, or if the proof failed."""
        plan, design = self.record.applied_plan(), state.config.target_design
        names = {item.card.name for item in plan.optimizations if item.card.judged_by is Judge.TIME_TO_TARGET}
        if not names:
            return None
        # Reserve the minimum that a proof by update time needs.
        least_s = self.costs.final_s(0.0, state.trial_update_s / plan.samples_factor)
        seconds = self.budget.left - REPORT_S - least_s
        pairs = min(int(seconds / state.whole_pair_s(EMPTY)), LOOKS[-1])
        if design is None or pairs < MIN_PAIRS:
            self._remove(names, lambda item: _removed(item, "undecided", NO_ROOM))
            return None
        self.say(f"final proof by time to target: up to {pairs} pairs of whole runs, plan [{', '.join(plan.names)}]")
        within = replace(design, looks=planned_looks(pairs), deadline=monotonic() + seconds)
        comparison = compare_to_target(
            self.setting, EMPTY, plan, within, on_pair=lambda so_far: self.say(pair_words(so_far))
        )  # fmt: skip
        self.record.retaken += comparison.retaken
        if comparison.verdict is Verdict.FASTER:
            return comparison
        self._remove(names, lambda item: _not_reached(item, comparison))
        return None

    # By the time of an update.

    def _prove_by_update(self, plan: Plan, tuned_s: float) -> None:
        training = {item.card.name for item in plan.optimizations if item.numerics is Numerics.TRAINING}
        whole = self.planned_updates if training and self.design.quality is not None else None
        spent_s, share = self.budget.spent, FIRST_PROOF_FRAC if training else 1.0
        comparison, held_out = self._compare(self.design, plan, tuned_s, share, whole)
        if held_out is not None and held_out.verdict != "not_worse" and training:
            hint = self._hint(comparison, held_out, tuned_s, whole, self.budget.spent - spent_s)
            proof = final_of(comparison, quality_result(self.design.quality, held_out, comparison))
            why = held_out.why
            reason = f"held-out quality is not proved to be as good: {why}{hint}"
            refused: dict[str, Any] = {"outcome": "refused", "reason": reason, "proof": proof}
            self._remove(training, lambda item: replace(with_numerics(item, "failed", why), **refused))
            plan = self.record.applied_plan()
            if not plan.optimizations:
                return
            comparison, held_out = self._compare(self.design, plan, tuned_s)
        self._adopt(plan, comparison, held_out)

    def _compare(
        self, design: Design, plan: Plan, tuned_s: float, share: float = 1.0, whole: int | None = None
    ) -> tuple[Comparison, NonInferiority | None]:
        """Compare over the `whole` run if it fits into the share of the time left, otherwise over fewer updates."""
        seconds = max(share * (self.budget.left - REPORT_S), 1.0)
        fits = whole is not None and self.costs.whole_proof_s(whole, tuned_s) <= seconds
        updates = whole if whole is not None and fits else self.costs.final_updates(seconds, tuned_s)
        if self.most_updates is not None:
            updates = max(min(updates, self.most_updates), MIN_UPDATES)
        length = f"whole runs of {updates}" if fits else f"{updates}"
        self.say(f"final proof: fresh processes in turns, {length} updates each, plan [{', '.join(plan.names)}]")
        design = replace(design, updates=updates, looks=LOOKS, deadline=monotonic() + seconds)
        try:
            comparison = compare(self.setting, EMPTY, plan, design, on_pair=self._say_pair)
        except TrialError as error:
            most = self.updates_of_ended(error)
            if most is None:
                raise
            return replace(self, most_updates=most)._compare(design, plan, tuned_s, share)  # noqa: SLF001 - same class
        self.record.retaken += comparison.retaken
        return comparison, None if design.quality is None else held_out_verdict(comparison, design.quality)

    def _adopt(
        self, plan: Plan, comparison: Comparison, held_out: NonInferiority | None, reached: TargetComparison | None = None
    ) -> None:
        """Record the proof. If it does not prove the plan, remove the plan's techniques."""
        quality = quality_result(reached.quality if reached else self.design.quality, held_out, reached or comparison)
        self.record.note_final(comparison, quality, reached)
        self.record.note_cost(self.objective, self.planned_updates)
        why = self._why_not(plan, comparison, held_out, reached)
        self.record.proved = not why
        if not why:
            return
        harmed = comparison.verdict is Verdict.SLOWER or (held_out is not None and held_out.verdict == "worse")
        keeps_events = self.events_apart and self.objective.goal is not Goal.MEMORY and not harmed
        around = {item.card.name for item in plan.optimizations if item.card.event and keeps_events}
        # Update times do not show what techniques for events save, but they must show that the updates are not slower.
        unharmed = comparison.verdict is not Verdict.UNDECIDED
        self.record.proved = unharmed and bool(around & set(self.record.applied_plan().names))
        outcome: Outcome = "undecided" if comparison.verdict is Verdict.UNDECIDED else "refused"
        self.record.change_applied(set(plan.names) - around, lambda item: _removed(item, outcome, why))

    def _why_not(
        self, plan: Plan, comparison: Comparison, held_out: NonInferiority | None, reached: TargetComparison | None
    ) -> str:
        """Return why the plan is not adopted; empty if it is."""
        if held_out is not None and held_out.verdict == "worse":
            quality = self.design.quality
            return f"the {metric_words(quality.metric) if quality else 'held-out quality'} became worse"
        if self.objective.goal is Goal.MEMORY:
            return self._why_no_memory(comparison)
        saves = any(item.card.memory_technique for item in plan.optimizations) and self._memory_frac() < MEMORY_SAVED
        proved_elsewhere = reached is not None and comparison.interval is not None
        if comparison.verdict is Verdict.FASTER or saves or proved_elsewhere:
            return ""
        return f"the final proof says {comparison.verdict}: {comparison.why}"

    def _why_no_memory(self, comparison: Comparison) -> str:
        """Return why the plan does not save enough memory; empty if it does."""
        objective, interval = self.objective, comparison.interval
        if interval is None:
            return f"the final proof says {comparison.verdict}: {comparison.why}"
        saved = 1.0 - self._memory_frac()
        if saved < MEMORY_PROVED_FRAC:
            return f"the whole plan lowers peak memory by only {saved:.0%}, and {MEMORY_PROVED_FRAC:.0%} is required"
        if not objective.allows(interval.low):
            return f"updates may take {1 / interval.low:.2f} times as long, and the limit is {objective.max_slowdown:.2f}"
        return ""

    def _memory_frac(self) -> float:
        """Return the peak memory under the plan, as a share of the plain job's."""
        memory = self.record.evidence.memory
        if memory is None or not memory.baseline_peak_bytes or memory.tuned_peak_bytes is None:
            return 1.0
        return memory.tuned_peak_bytes / memory.baseline_peak_bytes

    def _remove(self, names: set[str], change: Callable[[Candidate], Candidate]) -> None:
        for item in self.record.change_applied(names, change):
            self.say(outcome_line(item))

    def _say_pair(self, so_far: Comparison) -> None:
        last = so_far.samples[-2:]
        a, b = (next(sample.seconds_per_item for sample in last if sample.arm == arm) for arm in "AB")
        disturbed = " (disturbed by other processes)" if any(sample.spoilt for sample in last) else ""
        self.say(f"pair {len(so_far.metrics['A'])}: {a / b:.2f}x{disturbed}")

    def _hint(
        self, comparison: Comparison, held_out: NonInferiority, tuned_s: float, whole: int | None, proof_s: float
    ) -> str:
        """Return advice on how to settle the held-out metric. `proof_s`: seconds of the proof that did not settle it."""
        if whole is None or self.design.quality is None:
            return ""
        were_whole = all(sample.updates >= whole for sample in comparison.samples if sample.arm == "A")

        def budget_of(pairs: int) -> str:
            return self.budget.ask_for(self.costs.whole_proof_s(whole, tuned_s, pairs) / FIRST_PROOF_FRAC - proof_s)

        return what_would_settle(held_out, self.design.quality, whole_runs=were_whole, budget_of=budget_of)


def what_would_settle(
    held_out: NonInferiority, quality: Quality, *, whole_runs: bool, budget_of: Callable[[int], str]
) -> str:
    """Return advice on what would settle a held-out metric that a proof left open, to append to the reason.

    Args:
        held_out: The proof's verdict on the metric, which is not `not_worse`.
        quality: The metric and its margin.
        whole_runs: Whether the proof used whole runs; otherwise it saw only the beginning of training.
        budget_of: Returns the `--budget` option for a number of pairs of whole runs.
    """
    if not whole_runs:
        return f". Whole runs would be more conclusive: {budget_of(LOOKS[0])}"
    if held_out.verdict != "undecided" or not math.isfinite(held_out.upper) or held_out.mean_harm >= quality.margin:
        return ""
    seeds = seeds_needed(held_out, quality.margin)
    if seeds is not None and seeds <= LOOKS[-1]:
        pairs = next(look for look in LOOKS if look >= seeds)
        return f". About {seeds} pairs of whole runs would settle it: {budget_of(pairs)}"
    many = "more than a hundred" if seeds is None else f"about {seeds}"
    return (
        f". Runs of one plan differ so much that {many} pairs would be needed, and a proof uses at most {LOOKS[-1]}: "
        f"longer training or more held-out data would make the metric more stable"
    )


def _not_reached(candidate: Candidate, comparison: TargetComparison) -> Candidate:
    """Return the record of a candidate whose final proof by time to target does not say `faster`."""
    held_out = comparison.held_out
    worse = held_out is not None and held_out.verdict == "worse"
    settled = worse or comparison.verdict in (Verdict.SLOWER, Verdict.SAME)
    why = f"the final proof by time to target says {comparison.verdict}: {comparison.why}"
    changed = _removed(candidate, "refused" if settled else "undecided", why)
    changed = replace(changed, proof=comparison.to_evidence() if comparison.interval is not None else None)
    return with_numerics(changed, "failed", held_out.why) if worse and held_out is not None else changed


def _removed(candidate: Candidate, outcome: Outcome, why: str) -> Candidate:
    return replace(candidate, outcome=outcome, reason=f"{candidate.reason}; removed again because {why}")
