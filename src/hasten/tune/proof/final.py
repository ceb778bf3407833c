"""The final proof by time to target: whole runs of the untouched job against whole runs of the whole plan.

What is judged by time to target stays in the plan only where this proof was measured and says `faster`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic

from hasten.core.card import Judge
from hasten.core.plan import Plan
from hasten.core.stats import LOOKS, Verdict
from hasten.tune.budget import REPORT_S, Budget
from hasten.tune.proof.time_to_target import MIN_PAIRS, TargetComparison
from hasten.tune.proof.whole_runs import TargetDesign, compare_to_target, planned_looks
from hasten.tune.record import Record
from hasten.tune.search.by_target import pair_words
from hasten.tune.search.search import EMPTY, Ladder
from hasten.tune.trials.trial import TrialSetting

NO_ROOM = "the budget has no room left for the final proof by time to target"


@dataclass(frozen=True)
class TargetProof:
    """Proves a plan by time to target, or takes out of it what is judged so.

    Attributes:
        setting: What all trials share.
        record: The rungs, and the plan they make.
        budget: The time budget.
        say: Told what is going on.
    """

    setting: TrialSetting
    record: Record
    budget: Budget
    say: Callable[[str], None]

    def prove(self, ladder: Ladder) -> TargetComparison | None:
        """Measure the proof; None where nothing is judged so, or where it did not hold and those rungs are taken out.

        Raises:
            TrialError: A trial of the proof failed.
        """
        plan = self.record.applied_plan()
        names = {item.card.name for item in plan.optimizations if item.card.judged_by is Judge.TIME_TO_TARGET}
        if not names:
            return None
        # What an update-time proof needs at least is left over.
        least_s = ladder.costs.final_s(0.0, ladder.trial_update_s / plan.samples_factor)
        seconds = self.budget.left - REPORT_S - least_s
        pairs = min(int(seconds / ladder.whole_pair_s(EMPTY)), LOOKS[-1])
        if ladder.target_design is None or pairs < MIN_PAIRS:
            self._take_out(names, NO_ROOM, None)
            return None
        found = self._measure(plan, ladder.target_design, pairs, seconds)
        if found.verdict is Verdict.FASTER:
            return found
        self._take_out(names, f"the final proof by time to target says {found.verdict}: {found.why}", found)
        return None

    def _measure(self, plan: Plan, design: TargetDesign, pairs: int, seconds: float) -> TargetComparison:
        self.say(f"the proof by time to target: up to {pairs} pairs of whole runs, plan [{', '.join(plan.names)}]")
        within = replace(design, looks=planned_looks(pairs), deadline=monotonic() + seconds)
        found = compare_to_target(self.setting, EMPTY, plan, within, on_pair=lambda so_far: self.say(pair_words(so_far)))
        self.record.retaken += found.retaken
        return found

    def _take_out(self, names: set[str], why: str, found: TargetComparison | None) -> None:
        worse = found is not None and found.held_out is not None and found.held_out.verdict == "worse"
        settled = worse or (found is not None and found.verdict in (Verdict.SLOWER, Verdict.SAME))
        for rung in self.record.rungs:
            if rung.name in names and rung.outcome == "applied":
                rung.outcome = "refused" if settled else "undecided"
                rung.reason += f"; taken out again because {why}"
                rung.proof = found.to_dict() if found is not None and found.interval is not None else None
                if worse and found is not None and found.held_out is not None:
                    rung.numerics = {**(rung.numerics or {}), "verdict": "failed", "why": found.held_out.why}
                self.say(f"{rung.outcome}: {rung.name}: {rung.reason}")
