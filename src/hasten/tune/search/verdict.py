"""Decide what a measurement means for a candidate: evidence first, then numerics, then the objective. Pure functions."""

from __future__ import annotations

from hasten.core.optimization import Optimization
from hasten.core.stats import Interval, Verdict
from hasten.report.evidence import Outcome
from hasten.tune.objective import MEMORY_STEP_FRAC, Goal, Objective
from hasten.tune.proof.compare import Comparison
from hasten.tune.proof.time_to_target import MIN_PAIRS, TargetComparison
from hasten.tune.search.candidate import break_even_updates
from hasten.tune.search.screening import Screening
from hasten.tune.search.state import SearchState

TRUSTED_GAIN = 0.08
"""A screened gain below this is confirmed by fresh processes first: resident processes differ by a few percent."""
MEMORY_SAVED = 0.9
"""Largest peak memory, relative to the base, at which a memory technique counts as saving memory."""


def decide(optimization: Optimization, screening: Screening, state: SearchState) -> tuple[Outcome, str]:
    """Return the outcome of a screening under the current plan, and why."""
    comparison = screening.comparison
    if why := unproved(screening):
        return "refused", why
    if comparison.interval is None:
        return "undecided", comparison.why
    gain = interval_words(comparison.interval)
    if state.config.objective.goal is Goal.MEMORY:
        return _decide_memory(screening, comparison.interval, state)
    if optimization.card.memory_technique:
        saved = screening.peak_bytes.get("B", 0) < MEMORY_SAVED * screening.peak_bytes.get("A", 0)
        return ("applied", f"saves memory at {gain}") if saved else ("refused", f"saves too little memory, at {gain}")
    if comparison.verdict is Verdict.FASTER:
        why = _not_earned_back(screening, comparison.interval.ratio, state)
        return ("refused", f"faster, {gain}, but {why}") if why else ("applied", f"faster: {gain}")
    if comparison.verdict is Verdict.SLOWER:
        return "refused", f"slower: {gain}"
    if comparison.verdict is Verdict.SAME or comparison.interval.high < 1.0 + state.config.floor_frac:
        return "refused", f"no gain: {gain}"
    return "undecided", f"no gain was shown: {gain}, noise floor {state.config.floor_frac:.1%}"


def unproved(screening: Screening) -> str:
    """Return why a candidate is refused regardless of its speed: no effect, or a failed numerics gate. Empty if neither."""
    gate = screening.gate
    if not screening.fired:
        missing = "; ".join(f"{c['name']}: {c['seen']}" for c in screening.evidence if not c["passed"]) or "no check"
        return f"it had no visible effect ({missing})"
    if gate is None or gate.verdict == "failed":
        return f"failed the numerics gate: {gate.why if gate else 'nothing was captured'}"
    return ""


def decide_to_target(comparison: TargetComparison) -> tuple[Outcome, str]:
    """Return the outcome of a comparison by time to target, and why."""
    if comparison.held_out is not None and comparison.held_out.verdict == "worse":
        return "refused", f"it ends worse: {comparison.held_out.why}"
    if comparison.missed and comparison.pairs >= MIN_PAIRS:
        return (
            "refused",
            f"{comparison.missed} of {comparison.pairs} whole runs never reached the target that the base reaches",
        )
    if comparison.interval is None:
        return "undecided", comparison.why
    gain = f"{interval_words(comparison.interval)} over whole runs"
    if comparison.verdict is Verdict.FASTER:
        return "applied", f"reaches the target sooner: {gain}"
    if comparison.verdict is Verdict.SLOWER:
        return "refused", f"reaches the target later: {gain}"
    if comparison.verdict is Verdict.SAME:
        return "refused", f"does not reach the target sooner: {gain}"
    return "undecided", f"not shown to reach the target sooner: {gain}; {comparison.why}"


def needs_confirmation(comparison: Comparison, objective: Objective) -> bool:
    """Return whether a gain is too small to trust without fresh processes. Peak memory varies less than time does."""
    interval = comparison.interval
    small = interval is not None and comparison.verdict is Verdict.FASTER and interval.low < 1.0 + TRUSTED_GAIN
    return small and objective.goal is not Goal.MEMORY


def interval_words(interval: Interval) -> str:
    """Return a gain with its interval, such as `1.25x (1.20 to 1.31)`."""
    return f"{interval.ratio:.2f}x ({interval.low:.2f} to {interval.high:.2f})"


def _decide_memory(screening: Screening, interval: Interval, state: SearchState) -> tuple[Outcome, str]:
    """Decide whether a candidate lowers the peak enough while the plan stays as fast as requested."""
    gain, objective = interval_words(interval), state.config.objective
    saved = 1.0 - screening.peak_bytes.get("B", 1) / max(screening.peak_bytes.get("A", 1), 1)
    if saved < MEMORY_STEP_FRAC:
        return "refused", f"peak memory changes by {-saved:+.0%}, and at least -{MEMORY_STEP_FRAC:.0%} is required; {gain}"
    slowest = state.speed * interval.low
    if not objective.allows(slowest):
        allowed = f"the limit is {objective.max_slowdown:.2f} times"
        return "refused", f"saves {saved:.0%} of the memory, but updates may take {1 / slowest:.2f} times as long; {allowed}"
    return "applied", f"saves {saved:.0%} of the memory at {gain}"


def _not_earned_back(screening: Screening, ratio: float, state: SearchState) -> str:
    """Return why the set-up does not pay off within the run, if cost is the goal; empty if it does."""
    planned = state.facts.job.planned_updates
    if state.config.objective.goal is not Goal.COST or planned is None:
        return ""
    needed = break_even_updates(screening.setup_s, state.update_s, state.update_s / ratio)
    if needed is not None and needed <= planned:
        return ""
    return f"its set-up of {screening.setup_s:.0f} s pays off after {needed} updates, and the run has {planned}"
