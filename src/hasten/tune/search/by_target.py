"""Try candidates that are judged by time to target, over whole runs.

They come last, when updates and therefore whole runs are as short as possible. They are tried only if the budget has room
for pairs of whole runs for the candidate and again for the final proof, without which the candidate could not be applied.
"""

from __future__ import annotations

from dataclasses import replace

from hasten.core.card import Judge
from hasten.core.errors import TrialError
from hasten.core.optimization import Optimization
from hasten.core.plan import Plan
from hasten.core.stats import LOOKS, Floor
from hasten.report.evidence import Candidate
from hasten.tune.proof.time_to_target import MIN_PAIRS, TargetComparison, pair_words
from hasten.tune.proof.whole_runs import TargetDesign, compare_to_target, planned_looks
from hasten.tune.search.candidate import NOT_TRIED, failed, noted, with_screening
from hasten.tune.search.ranking import rank
from hasten.tune.search.screening import Screen, Screening
from hasten.tune.search.state import EMPTY, Adopted, Result, Results, SearchState
from hasten.tune.search.verdict import decide_to_target, unproved

NO_METRIC = "the job defines no held-out metric, so there is no target to reach: set quality"


def try_to_target(state: SearchState, screen: Screen) -> Results:
    """Try every candidate that is judged by time to target, best first, while the budget has room for whole runs."""
    while waiting := _waiting(state):
        optimization, design = waiting[0], state.config.target_design
        if design is None:
            yield Result((noted(optimization, "refused", NO_METRIC),))
            continue
        pairs = _room(state, len(waiting))
        if pairs < MIN_PAIRS:
            yield Result((noted(optimization, "undecided", _no_room(state, design)),))
        else:
            yield _try(state, screen, optimization, _within(state, design, pairs))


def _waiting(state: SearchState) -> list[Optimization]:
    """Return the candidates still to try, without further settings of a technique that was refused before any run."""
    known = state.candidates
    not_run = {item.name for item in known if item.reason.startswith(NOT_TRIED) or item.reason == NO_METRIC}
    ranked = (item.optimization for item in rank(state, Judge.TIME_TO_TARGET))
    return [item for item in ranked if item.card.name not in not_run]


def _room(state: SearchState, waiting: int) -> int:
    """Return the pairs of whole runs for the next of `waiting` candidates; it may get the minimum if not all can."""
    pair_s = state.whole_pair_s(state.plan)
    left_s = state.config.budget.left - state.reserve_s() - _proof_s(state) - state.screening_s()
    fair, least = left_s / waiting / pair_s, left_s / pair_s
    return int(min(max(fair, min(least, MIN_PAIRS)), LOOKS[-1]))


def _no_room(state: SearchState, design: TargetDesign) -> str:
    run_s = state.whole_pair_s(state.plan) / 2
    needed_s = MIN_PAIRS * 2 * run_s + _proof_s(state) + state.screening_s() + state.reserve_s()
    pairs = f"{MIN_PAIRS} pairs and {MIN_PAIRS} more for the final proof"
    measured = f"with {design.points} measurements of the held-out metric"
    return (
        f"{NOT_TRIED}: a whole run takes {run_s:.0f} s {measured}, and {pairs} do not fit into the budget; "
        f"use {state.config.budget.ask_for(needed_s)}"
    )


def _proof_s(state: SearchState) -> float:
    """Return the seconds that the final proof would need in addition to those already reserved."""
    return 0.0 if state.target_reserve_s() else MIN_PAIRS * state.whole_pair_s(EMPTY)


def _within(state: SearchState, design: TargetDesign, pairs: int) -> TargetDesign:
    """Return the design with as many pairs as the budget has room for."""
    reason = "the noise floor of this machine, from turns of the plain job against itself"
    deadline = state.config.budget.deadline - state.reserve_s() - _proof_s(state)
    floor = Floor(state.config.floor_frac, reason)
    return replace(design, looks=planned_looks(pairs), deadline=deadline, floor=floor)


def _try(state: SearchState, screen: Screen, optimization: Optimization, design: TargetDesign) -> Result:
    """Screen it for its mechanism and numerics, then compare whole runs."""
    plan = state.plan.plus(optimization)
    screen.say(f"trying {optimization.card.name} by time to target")
    try:
        screening = screen.screen(optimization, plan, state.turn_updates)
        if why := unproved(screening):
            refused = noted(optimization, "refused", why)
            return Result((with_screening(refused, screening, state.update_s),))
        comparison = _compare(screen, state.plan, plan, design)
    except TrialError as error:
        return Result((failed(optimization, error),))
    outcome, reason = decide_to_target(comparison)
    candidate = with_screening(noted(optimization, outcome, reason), screening, state.update_s)
    adopted = Adopted(name=None) if outcome == "applied" else None
    return Result((_with_whole_runs(candidate, screening, comparison),), adopted)


def _compare(screen: Screen, base: Plan, plan: Plan, design: TargetDesign) -> TargetComparison:
    screen.freeze()
    return compare_to_target(screen.setting, base, plan, design, on_pair=lambda so_far: screen.say(pair_words(so_far)))


def _with_whole_runs(candidate: Candidate, screening: Screening, comparison: TargetComparison) -> Candidate:
    """Return the candidate with the comparison by time to target as its main one, and the screening's in `update_time`."""
    measured = comparison.to_evidence()
    changed = replace(candidate, update_time=candidate.comparison, break_even_updates=None)
    if comparison.interval is None:
        unused = (*(candidate.unused_samples or ()), *(measured.samples or ()))
        changed = replace(changed, comparison=None, unused_samples=unused)
    else:
        changed = replace(changed, comparison=measured)
    if candidate.numerics is None or comparison.held_out is None:
        return changed
    verdict = "failed" if comparison.held_out.verdict == "worse" else screening.gate.verdict if screening.gate else "pending"
    return replace(changed, numerics=replace(candidate.numerics, verdict=verdict, why=comparison.held_out.why))
