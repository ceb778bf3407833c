"""Confirm a small gain with fresh processes: two resident ones differ by a few percent whatever their plans."""

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
"""Seconds of updates that each process of a pair counts, about."""
CONFIRM_LOOKS = (5, 8)
"""Pairs over a small gain: where five leave it open, three more cost less than a gain that is never had."""
MAX_CONFIRM_UPDATES = 400


@dataclass(frozen=True)
class Decision:
    """What becomes of a candidate, why, and what was measured: the screening, its comparison replaced by the last one."""

    outcome: Outcome
    reason: str
    screening: Screening


def confirm(
    state: SearchState, screen: Screen, optimization: Optimization, plan: Plan, screening: Screening,
    *, seconds: float = CONFIRM_UPDATES_S,
) -> Decision:  # fmt: skip
    """Let fresh processes decide over a small gain; without the time for them it stays undecided.

    Args:
        state: The present state.
        screen: The resident processes, which are frozen meanwhile.
        optimization: What is in question.
        plan: The present plan with it.
        screening: Shows the gain.
        seconds: Of updates that each process counts, about.
    """
    reserve_s = state.config.reserve_s(state.trial_update_s)
    screened = screening.comparison.interval
    gain = f"{screened.ratio:.2f}x" if screened else "a gain"
    if state.config.budget.left - confirming_s(state, optimization, seconds) < reserve_s:
        why = f"{gain} in turns is too small to trust without fresh processes, and the budget has no room for them"
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
    return Decision("refused", f"{gain} in turns did not hold in fresh processes: {interval_words(interval)}", confirmed)


def decide_and_confirm(
    state: SearchState, screen: Screen, optimization: Optimization, plan: Plan, screening: Screening,
    *, seconds: float = CONFIRM_UPDATES_S,
) -> Decision:  # fmt: skip
    """What a screening means, confirmed where the gain is small; arguments as for `confirm`."""
    outcome, reason = decide(optimization, screening, state)
    if outcome == "applied" and needs_confirmation(screening.comparison, state.config.objective):
        return confirm(state, screen, optimization, plan, screening, seconds=seconds)
    return Decision(outcome, reason, screening)


def confirming_s(state: SearchState, optimization: Optimization, seconds: float = CONFIRM_UPDATES_S) -> float:
    """What confirming takes, in seconds."""
    pair_s = 2 * state.config.costs.start_s + 2 * (_confirming_updates(state, seconds) + 4) * state.update_s
    return CONFIRM_LOOKS[0] * pair_s + 2 * optimization.card.setup_s


def _confirming_updates(state: SearchState, seconds: float) -> int:
    return min(max(int(seconds / state.update_s), 3 * state.config.updates), MAX_CONFIRM_UPDATES)
