"""What a screening means for a candidate: evidence first, then numbers, then what is wanted."""

from __future__ import annotations

from dataclasses import dataclass

from hasten.core.optimization import Optimization
from hasten.core.stats import Interval, Verdict
from hasten.tune.objective import MEMORY_STEP_FRAC, Goal, Objective
from hasten.tune.proof.compare import Comparison
from hasten.tune.proof.time_to_target import MIN_PAIRS, TargetComparison
from hasten.tune.search.candidate import Outcome, break_even_updates
from hasten.tune.search.screening import Screening

TRUSTED_GAIN = 0.08
"""A screened gain below this is confirmed by fresh processes before it counts: resident ones differ by a few percent."""
MEMORY_SAVED = 0.9


@dataclass(frozen=True, kw_only=True)
class Given:
    """What a decision rests on beside the screening.

    Attributes:
        objective: What is wanted.
        floor_frac: The smallest difference that can be told here.
        speed: Of the present plan, as a ratio to the plain job.
        update_s: Seconds of an update under the present plan.
        planned_updates: Of the whole run; None where unknown.
    """

    objective: Objective
    floor_frac: float
    speed: float
    update_s: float
    planned_updates: int | None


def decide(optimization: Optimization, screening: Screening, given: Given) -> tuple[Outcome, str]:
    """The outcome of a screening, and why."""
    comparison = screening.comparison
    if why := unproved(screening):
        return "refused", why
    if comparison.interval is None:
        return "undecided", comparison.why
    seen = f"{comparison.interval.ratio:.2f}x ({comparison.interval.low:.2f} to {comparison.interval.high:.2f})"
    if given.objective.goal is Goal.MEMORY:
        return _decide_memory(screening, comparison.interval, seen, given)
    if optimization.card.memory_technique:
        saved = screening.peak_bytes.get("B", 0) < MEMORY_SAVED * screening.peak_bytes.get("A", 0)
        return ("applied", f"saves memory at {seen}") if saved else ("refused", f"saves too little memory, at {seen}")
    if comparison.verdict is Verdict.FASTER:
        why = _not_earned_back(screening, comparison.interval.ratio, given)
        return ("refused", f"faster, {seen}, but {why}") if why else ("applied", f"faster: {seen}")
    if comparison.verdict is Verdict.SLOWER:
        return "refused", f"slower here: {seen}"
    if comparison.verdict is Verdict.SAME or comparison.interval.high < 1.0 + given.floor_frac:
        return "refused", f"brings nothing here: {seen}"
    return "undecided", f"no gain was shown: {seen}, floor {given.floor_frac:.1%}"


def unproved(screening: Screening) -> str:
    """Why a candidate is refused whatever the clock says: no mechanism at work, or the numerics gate; empty for neither."""
    gate = screening.gate
    if not screening.fired:
        missing = "; ".join(f"{c['name']}: {c['seen']}" for c in screening.evidence if not c["passed"]) or "no check"
        return f"its mechanism was not seen at work ({missing})"
    if gate is None or gate.verdict == "failed":
        return f"the numerics gate says no: {gate.why if gate else 'nothing was captured'}"
    return ""


def decide_to_target(found: TargetComparison) -> tuple[Outcome, str]:
    """The outcome of a comparison by time to target, and why."""
    if found.held_out is not None and found.held_out.verdict == "worse":
        return "refused", f"it ends worse: {found.held_out.why}"
    if found.missed and found.pairs >= MIN_PAIRS:
        return "refused", f"{found.missed} of {found.pairs} whole runs never reached the target, which the base's reach"
    if found.interval is None:
        return "undecided", found.why
    seen = f"{found.interval.ratio:.2f}x ({found.interval.low:.2f} to {found.interval.high:.2f}) over whole runs"
    if found.verdict is Verdict.FASTER:
        return "applied", f"sooner at the target: {seen}"
    if found.verdict is Verdict.SLOWER:
        return "refused", f"later at the target: {seen}"
    if found.verdict is Verdict.SAME:
        return "refused", f"no sooner at the target: {seen}"
    return "undecided", f"not shown to be sooner at the target: {seen}; {found.why}"


def needs_confirmation(comparison: Comparison, objective: Objective) -> bool:
    """Whether a gain is too small to trust without fresh processes; a peak of memory does not scatter as times do."""
    interval = comparison.interval
    small = interval is not None and comparison.verdict is Verdict.FASTER and interval.low < 1.0 + TRUSTED_GAIN
    return small and objective.goal is not Goal.MEMORY


def _decide_memory(screening: Screening, interval: Interval, seen: str, given: Given) -> tuple[Outcome, str]:
    """Whether it lowers the peak enough, and leaves the plan as fast as was asked."""
    saved = 1.0 - screening.peak_bytes.get("B", 1) / max(screening.peak_bytes.get("A", 1), 1)
    if saved < MEMORY_STEP_FRAC:
        return "refused", f"the peak memory becomes {-saved:+.0%}, and it takes -{MEMORY_STEP_FRAC:.0%} to count; {seen}"
    slowest = given.speed * interval.low
    if not given.objective.allows(slowest):
        allowed = f"at most {given.objective.max_slowdown:.2f} times as long is allowed"
        return "refused", f"saves {saved:.0%} of the memory, but updates may take {1 / slowest:.2f} times as long: {allowed}"
    return "applied", f"saves {saved:.0%} of the memory at {seen}"


def _not_earned_back(screening: Screening, ratio: float, given: Given) -> str:
    """Where a cheap run is wanted: why the set-up does not pay within the run; empty where it does."""
    if given.objective.goal is not Goal.COST or given.planned_updates is None:
        return ""
    needed = break_even_updates(screening.setup_s, given.update_s, given.update_s / ratio)
    if needed is not None and needed <= given.planned_updates:
        return ""
    run = f"the run has {given.planned_updates}"
    return f"its set-up of {screening.setup_s:.0f} s is earned back after {needed} updates, and {run}"
