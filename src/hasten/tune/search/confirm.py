"""Confirm a small gain with fresh processes: two resident processes differ by a few percent under any plan."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hasten.core.errors import TrialError
from hasten.core.optimization import Optimization
from hasten.core.plan import Plan
from hasten.core.stats import Verdict
from hasten.report.evidence import Outcome
from hasten.tune.proof.compare import compare
from hasten.tune.search.candidate import failure_words
from hasten.tune.search.screening import Screen, Screening
from hasten.tune.search.state import SearchState
from hasten.tune.search.verdict import decide, interval_words, needs_confirmation

CONFIRM_UPDATES_S = 1.5
"""Approximate seconds of updates that each process of a pair counts."""
CONFIRM_LOOKS = (5, 8)
"""Numbers of pairs after which a verdict is read. If five pairs leave a small gain open, three more are worth their cost."""
MAX_CONFIRM_UPDATES = 400


@dataclass(frozen=True)
class Decision:
    """The outcome of a candidate, its reason, and the measurement: the screening with the last comparison in it."""

    outcome: Outcome
    reason: str
    screening: Screening


def confirm(
    state: SearchState, screen: Screen, optimization: Optimization, plan: Plan, screening: Screening,
    *, seconds: float = CONFIRM_UPDATES_S,
) -> Decision:  # fmt: skip
    """Let fresh processes decide on a small gain. Without enough time for them, the candidate stays undecided.

    Args:
        state: The current state.
        screen: The resident processes, which are frozen meanwhile.
        optimization: The candidate.
        plan: The current plan with the candidate.
        screening: The screening that shows the gain.
        seconds: Approximate seconds of updates that each process counts.
    """
    reserve_s = state.config.reserve_s(state.costs, state.trial_update_s)
    screened = screening.comparison.interval
    gain = f"{screened.ratio:.2f}x" if screened else "a gain"
    if state.config.budget.left - confirming_s(state, optimization, seconds) < reserve_s:
        why = f"{gain} in turns is too small to trust without fresh processes, which the budget has no time for"
        return Decision("undecided", why, screening)
    screen.say(f"confirming {optimization.card.name} with fresh processes")
    updates, most = _confirming_updates(state, seconds), screen.processes.most_updates
    design = replace(
        state.config.design, updates=updates if most is None else min(updates, most), looks=CONFIRM_LOOKS,
        deadline=state.config.budget.deadline - reserve_s,
    )  # fmt: skip
    screen.freeze()
    try:
        comparison = compare(screen.setting, state.plan, plan, design)
    except TrialError as error:
        return Decision("failed", f"{failure_words(error)}: {error}", screening)
    confirmed, interval = replace(screening, comparison=comparison), comparison.interval
    if interval is None or comparison.verdict is Verdict.UNDECIDED:
        why = f"{gain} in turns, but fresh processes leave it open: {comparison.why}"
        return Decision("undecided", why, confirmed)
    if comparison.verdict is Verdict.FASTER:
        return Decision("applied", f"faster, confirmed by fresh processes: {interval_words(interval)}", confirmed)
    return Decision("refused", f"{gain} in turns, not confirmed by fresh processes: {interval_words(interval)}", confirmed)


def decide_and_confirm(
    state: SearchState, screen: Screen, optimization: Optimization, plan: Plan, screening: Screening,
    *, seconds: float = CONFIRM_UPDATES_S,
) -> Decision:  # fmt: skip
    """Decide on a screening, and confirm the decision if the gain is small. Arguments as for `confirm`."""
    outcome, reason = decide(optimization, screening, state)
    if outcome == "applied" and needs_confirmation(screening.comparison, state.config.objective):
        return confirm(state, screen, optimization, plan, screening, seconds=seconds)
    return Decision(outcome, reason, screening)


def confirming_s(state: SearchState, optimization: Optimization, seconds: float = CONFIRM_UPDATES_S) -> float:
    """Return the seconds that confirming takes."""
    pair_s = (
        2 * (state.config.costs.start_s + state.warming_s) + 2 * (_confirming_updates(state, seconds) + 4) * state.update_s
    )
    return CONFIRM_LOOKS[0] * pair_s + 2 * optimization.card.setup_s


def _confirming_updates(state: SearchState, seconds: float) -> int:
    return min(max(int(seconds / state.update_s), 3 * state.config.updates), MAX_CONFIRM_UPDATES)
