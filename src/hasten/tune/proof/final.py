"""The final proof: the plain job against the whole plan, in fresh processes; what does not hold leaves the plan.

A plan may have to hold three times. What is judged by time to target stays only where pairs of whole runs say `faster`. What
changes the mathematics stays only where the held-out metric is proved not to be worse; otherwise it is dropped, and the rest
is proved by itself. And the plan as a whole must make updates faster (or save memory, where that is wanted).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

from hasten.core.card import Judge, Numerics
from hasten.core.job import Quality
from hasten.core.plan import Plan
from hasten.core.stats import LOOKS, NonInferiority, Verdict, seeds_needed
from hasten.report.evidence import Candidate, Outcome
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
FIRST_PROOF_FRAC = 0.6
"""Of the time that is left, where the plan changes the mathematics: if its quality is not proved, the rest needs its own."""
NO_ROOM = "the budget has no room left for the final proof by time to target"


@dataclass(frozen=True, kw_only=True)
class FinalProof:
    """Proves the plan of a record, or takes out of it what does not hold.

    Attributes:
        setting: What all trials share.
        record: The candidates, and the plan they make; it is told what was proved.
        design: How pairs are run; `quality` is what "not worse" means, None where nothing says so.
        costs: What things cost here.
        budget: The time budget.
        objective: What is wanted.
        events_apart: What acts on reports, checkpoints or validation was measured by itself: no update tells of it.
        planned_updates: Of the whole run; None where unknown.
        most_updates: That each process can do; None for any number.
        say: Told what is going on.
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
    say: Callable[[str], None] = lambda _: None

    def prove(self, state: SearchState) -> None:
        """Run the proof of the applied candidates. `state`: of the search at its end.

        Raises:
            TrialError: A trial of the proof failed.
        """
        plan = self.record.applied_plan()
        if not plan.optimizations:
            self.say("no technique is left to prove")
            return
        tuned_s = state.trial_update_s / plan.samples_factor  # of as many samples as an update of the job's own
        reached = self._prove_to_target(state)
        plan = self.record.applied_plan()
        if not plan.optimizations:
            return
        if reached is None:
            self._prove_by_update(plan, tuned_s)
            return
        # Whole runs have judged the quality; a short run would judge a schedule by its warm-up.
        comparison, _ = self._compare(replace(self.design, quality=None), plan, tuned_s)
        self._adopt(plan, comparison, reached.held_out, reached)

    # By time to target.

    def _prove_to_target(self, state: SearchState) -> TargetComparison | None:
        """Compare whole runs; None where nothing is judged so, or where it did not hold and is taken out."""
        plan, design = self.record.applied_plan(), state.config.target_design
        names = {item.card.name for item in plan.optimizations if item.card.judged_by is Judge.TIME_TO_TARGET}
        if not names:
            return None
        # What a proof by update time needs at least is left over.
        least_s = self.costs.final_s(0.0, state.trial_update_s / plan.samples_factor)
        seconds = self.budget.left - REPORT_S - least_s
        pairs = min(int(seconds / state.whole_pair_s(EMPTY)), LOOKS[-1])
        if design is None or pairs < MIN_PAIRS:
            self._take_out(names, lambda item: _taken_out(item, "undecided", NO_ROOM))
            return None
        self.say(f"the proof by time to target: up to {pairs} pairs of whole runs, plan [{', '.join(plan.names)}]")
        within = replace(design, looks=planned_looks(pairs), deadline=monotonic() + seconds)
        comparison = compare_to_target(
            self.setting, EMPTY, plan, within, on_pair=lambda so_far: self.say(pair_words(so_far))
        )  # fmt: skip
        self.record.retaken += comparison.retaken
        if comparison.verdict is Verdict.FASTER:
            return comparison
        self._take_out(names, lambda item: _not_reached(item, comparison))
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
            reason = f"held-out quality is not proved to hold: {why}{hint}"
            refused: dict[str, Any] = {"outcome": "refused", "reason": reason, "proof": proof}
            self._take_out(training, lambda item: replace(with_numerics(item, "failed", why), **refused))
            plan = self.record.applied_plan()
            if not plan.optimizations:
                return
            comparison, held_out = self._compare(self.design, plan, tuned_s)
        self._adopt(plan, comparison, held_out)

    def _compare(
        self, design: Design, plan: Plan, tuned_s: float, share: float = 1.0, whole: int | None = None
    ) -> tuple[Comparison, NonInferiority | None]:
        """Compare over `whole` updates, those of the whole run, where they fit into the share of the time; else fewer."""
        seconds = max(share * (self.budget.left - REPORT_S), 1.0)
        fits = whole is not None and self.costs.whole_proof_s(whole, tuned_s) <= seconds
        updates = whole if whole is not None and fits else self.costs.final_updates(seconds, tuned_s)
        if self.most_updates is not None:
            updates = max(min(updates, self.most_updates), MIN_UPDATES)
        words = "whole runs of " if fits else ""
        self.say(f"the proof: fresh processes in turns, {words}{updates} updates each, plan [{', '.join(plan.names)}]")
        design = replace(design, updates=updates, looks=LOOKS, deadline=monotonic() + seconds)
        comparison = compare(self.setting, EMPTY, plan, design, on_pair=self._say_pair)
        self.record.retaken += comparison.retaken
        return comparison, None if design.quality is None else held_out_verdict(comparison, design.quality)

    def _adopt(
        self, plan: Plan, comparison: Comparison, held_out: NonInferiority | None, reached: TargetComparison | None = None
    ) -> None:
        """Keep the proof, and the plan where it holds; else take it out."""
        quality = quality_result(reached.quality if reached else self.design.quality, held_out, reached or comparison)
        self.record.note_final(comparison, quality, reached)
        self.record.note_cost(self.objective, self.planned_updates)
        why = self._why_not(plan, comparison, held_out, reached)
        self.record.proved = not why
        if not why:
            return
        harmed = comparison.verdict is Verdict.SLOWER or (held_out is not None and held_out.verdict == "worse")
        around = {item.card.name for item in plan.optimizations if item.card.event and self.events_apart and not harmed}
        # The time of an update says nothing about what acts on events.
        self.record.proved = bool(around & set(self.record.applied_plan().names))
        outcome: Outcome = "undecided" if comparison.verdict is Verdict.UNDECIDED else "refused"
        self.record.change_applied(set(plan.names) - around, lambda item: _taken_out(item, outcome, why))

    def _why_not(
        self, plan: Plan, comparison: Comparison, held_out: NonInferiority | None, reached: TargetComparison | None
    ) -> str:
        """Why the plan is not adopted; empty where it is."""
        if held_out is not None and held_out.verdict == "worse":
            return "the held-out quality became worse"
        if self.objective.goal is Goal.MEMORY:
            return self._why_no_memory(comparison)
        saves = any(item.card.memory_technique for item in plan.optimizations) and self._memory_frac() < MEMORY_SAVED
        proved_elsewhere = reached is not None and comparison.interval is not None
        if comparison.verdict is Verdict.FASTER or saves or proved_elsewhere:
            return ""
        return f"the final proof says {comparison.verdict}: {comparison.why}"

    def _why_no_memory(self, comparison: Comparison) -> str:
        """Why the plan is no answer to a wish for less memory; empty where it is one."""
        objective, interval = self.objective, comparison.interval
        if interval is None:
            return f"the final proof says {comparison.verdict}: {comparison.why}"
        saved = 1.0 - self._memory_frac()
        if saved < MEMORY_PROVED_FRAC:
            return f"the whole plan lowers the peak memory by {saved:.0%} only, and {MEMORY_PROVED_FRAC:.0%} counts"
        if not objective.allows(interval.low):
            return f"updates may take {1 / interval.low:.2f} times as long, and {objective.max_slowdown:.2f} is allowed"
        return ""

    def _memory_frac(self) -> float:
        """Peak memory under the plan, as a share of the plain job's."""
        memory = self.record.evidence.memory
        if memory is None or not memory.baseline_peak_bytes or memory.tuned_peak_bytes is None:
            return 1.0
        return memory.tuned_peak_bytes / memory.baseline_peak_bytes

    def _take_out(self, names: set[str], change: Callable[[Candidate], Candidate]) -> None:
        for item in self.record.change_applied(names, change):
            self.say(f"{item.outcome}: {item.name}: {item.reason}")

    def _say_pair(self, so_far: Comparison) -> None:
        last = so_far.samples[-2:]
        a, b = (next(sample.seconds_per_item for sample in last if sample.arm == arm) for arm in "AB")
        spoilt = " (spoilt by a neighbour)" if any(sample.spoilt for sample in last) else ""
        self.say(f"pair {len(so_far.metrics['A'])}: {a / b:.2f}x{spoilt}")

    def _hint(
        self, comparison: Comparison, held_out: NonInferiority, tuned_s: float, whole: int | None, proof_s: float
    ) -> str:
        """What would settle the held-out metric; `proof_s`: seconds of the proof that did not."""
        if whole is None or self.design.quality is None:
            return ""
        were_whole = all(sample.updates >= whole for sample in comparison.samples if sample.arm == "A")

        def budget_of(pairs: int) -> str:
            return self.budget.ask_for(self.costs.whole_proof_s(whole, tuned_s, pairs) / FIRST_PROOF_FRAC - proof_s)

        return what_would_settle(held_out, self.design.quality, whole_runs=were_whole, budget_of=budget_of)


def what_would_settle(
    held_out: NonInferiority, quality: Quality, *, whole_runs: bool, budget_of: Callable[[int], str]
) -> str:
    """What would say more than a proof that left the held-out metric open, in words that follow its reason.

    Args:
        held_out: What the proof says of the metric, which is not that it holds.
        quality: The metric and its margin.
        whole_runs: The proof was one of whole runs; otherwise it looked at the beginning of training only.
        budget_of: The `--budget` that holds so many pairs of whole runs.
    """
    if not whole_runs:
        return f". Whole runs would say more: {budget_of(LOOKS[0])}"
    if held_out.verdict != "undecided" or not math.isfinite(held_out.upper) or held_out.mean_harm >= quality.margin:
        return ""
    seeds = seeds_needed(held_out, quality.margin)
    if seeds is not None and seeds <= LOOKS[-1]:
        pairs = next(look for look in LOOKS if look >= seeds)
        return f". About {seeds} pairs of whole runs would settle it: {budget_of(pairs)}"
    many = "more than a hundred" if seeds is None else f"about {seeds}"
    return (
        f". Runs of one plan differ so much that {many} pairs would be needed, and a proof takes {LOOKS[-1]} at most: "
        f"a longer training or more held-out data would steady the metric"
    )


def _not_reached(candidate: Candidate, comparison: TargetComparison) -> Candidate:
    """What becomes of a candidate whose final proof by time to target does not say `faster`."""
    held_out = comparison.held_out
    worse = held_out is not None and held_out.verdict == "worse"
    settled = worse or comparison.verdict in (Verdict.SLOWER, Verdict.SAME)
    why = f"the final proof by time to target says {comparison.verdict}: {comparison.why}"
    changed = _taken_out(candidate, "refused" if settled else "undecided", why)
    changed = replace(changed, proof=comparison.to_evidence() if comparison.interval is not None else None)
    return with_numerics(changed, "failed", held_out.why) if worse and held_out is not None else changed


def _taken_out(candidate: Candidate, outcome: Outcome, why: str) -> Candidate:
    return replace(candidate, outcome=outcome, reason=f"{candidate.reason}; taken out again because {why}")
