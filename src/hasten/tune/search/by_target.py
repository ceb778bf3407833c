"""The last part of the climb: candidates that are judged by time to target, over whole runs.

They come last, when an update is as fast as it will be and a whole run as short; and only where the budget holds pairs of
whole runs for the candidate and again for the final proof, because without that proof it could not be applied.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hasten.core.card import Judge
from hasten.core.errors import TrialError
from hasten.core.optimization import Optimization
from hasten.core.plan import Plan
from hasten.core.stats import LOOKS, Floor
from hasten.tune.proof.time_to_target import MIN_PAIRS, TargetComparison
from hasten.tune.proof.whole_runs import compare_to_target, planned_looks
from hasten.tune.search.candidate import Candidate
from hasten.tune.search.noting import NOT_TRIED
from hasten.tune.search.screening import TURNS, Screening
from hasten.tune.search.verdict import decide_to_target, unproved

if TYPE_CHECKING:
    from hasten.tune.search.search import Ladder

EMPTY = Plan()
NO_METRIC = "the job names no held-out metric, so there is no target to reach: set quality"


def try_to_target(ladder: Ladder) -> None:
    """Try every candidate that is judged by time to target, best first, as long as whole runs fit into the budget."""
    while waiting := _waiting(ladder):
        optimization = waiting[0]
        if ladder.target_design is None:
            ladder.note(optimization, "refused", NO_METRIC)
            continue
        pairs = _room(ladder, len(waiting))
        if pairs < MIN_PAIRS:
            ladder.note(optimization, "undecided", _no_room(ladder))
        else:
            _try(ladder, optimization, pairs)


def _waiting(ladder: Ladder) -> list[Optimization]:
    """Candidates still to try; no other setting of one that was refused before any run."""
    unrun = {rung.name for rung in ladder.rungs if rung.reason.startswith(NOT_TRIED) or rung.reason == NO_METRIC}
    return [item for _, item, _ in ladder.candidates(Judge.TIME_TO_TARGET) if item.card.name not in unrun]


def _room(ladder: Ladder, waiting: int) -> int:
    """Pairs of whole runs for one of so many candidates that wait; the first may have the least where not all can."""
    pair_s = ladder.whole_pair_s(ladder.screen.plan)
    left = ladder.budget.left - ladder.reserve() - _proof_s(ladder) - _screening_s(ladder)
    fair, least = left / waiting / pair_s, left / pair_s
    return int(min(max(fair, min(least, MIN_PAIRS)), LOOKS[-1]))


def _no_room(ladder: Ladder) -> str:
    plan, design = ladder.screen.plan, ladder.target_design
    run_s, points = ladder.whole_pair_s(plan) / 2, design.points if design else 0
    needed = MIN_PAIRS * 2 * run_s + _proof_s(ladder) + _screening_s(ladder) + ladder.reserve()
    pairs = f"{MIN_PAIRS} pairs of them, and {MIN_PAIRS} more for the final proof"
    measured = f"with {points} measurements of the held-out metric"
    return (
        f"{NOT_TRIED}: a whole run takes {run_s:.0f} s {measured}, and {pairs}, do not fit in the budget; "
        f"give {ladder.budget.ask_for(needed)}"
    )


def _proof_s(ladder: Ladder) -> float:
    """What the final proof would need that is not set aside yet."""
    return 0.0 if ladder.target_reserve_s() else MIN_PAIRS * ladder.whole_pair_s(EMPTY)


def _screening_s(ladder: Ladder) -> float:
    return ladder.costs.screening_s(TURNS, ladder.turn_updates, ladder.trial_update_s)


def _try(ladder: Ladder, optimization: Optimization, pairs: int) -> None:
    """Screen it for its mechanism and its numbers, then compare whole runs."""
    name, plan = optimization.card.name, ladder.screen.plan.plus(optimization)
    ladder.say(f"trying {name} by time to target")
    try:
        screening = ladder.screen.screen(optimization, plan, ladder.turn_updates)
    except TrialError as error:
        ladder.note_failure(optimization, error)
        return
    if why := unproved(screening):
        ladder.note(optimization, "refused", why, screening=screening)
        return
    try:
        found = _compare(ladder, plan, pairs)
    except TrialError as error:
        ladder.note_failure(optimization, error)
        return
    outcome, reason = decide_to_target(found)
    rung = ladder.note(optimization, outcome, reason, screening=screening)
    _fill(rung, screening, found)
    ladder.save()
    if outcome == "applied":
        ladder.screen.promote()
        ladder.refresh()


def _compare(ladder: Ladder, plan: Plan, pairs: int) -> TargetComparison:
    """Whole runs of the present plan against `plan`, as many pairs as the budget has room for."""
    if ladder.target_design is None:
        raise TrialError(NO_METRIC, kind="raised")
    floor = Floor(ladder.screen.floor_frac, "what this machine's noise supports, by turns of the plain job against itself")
    deadline = ladder.budget.deadline - ladder.reserve() - _proof_s(ladder)
    design = replace(ladder.target_design, looks=planned_looks(pairs), deadline=deadline, floor=floor)
    for resident in (ladder.screen.base, ladder.screen.challenger):
        if resident is not None:
            resident.trial.freeze()
    return compare_to_target(
        ladder.screen.setting, ladder.screen.plan, plan, design, on_pair=lambda found: ladder.say(pair_words(found))
    )


def pair_words(found: TargetComparison) -> str:
    """The last pair of a comparison in words."""
    base, candidate = sorted(found.runs[-2:], key=lambda run: run.arm)
    if base.seconds_to_target is None or candidate.seconds_to_target is None:
        return f"pair {found.pairs}: no target"
    reached = "" if candidate.reached else ", never reached"
    return f"pair {found.pairs}: {base.seconds_to_target:.3g} s and {candidate.seconds_to_target:.3g} s to target{reached}"


def _fill(rung: Candidate, screening: Screening, found: TargetComparison) -> None:
    """Put the comparison by time to target in the place of the screening's, which is kept beside it."""
    rung.update_time, rung.break_even_updates = rung.comparison, None
    rung.comparison = found.to_dict() if found.interval else None
    if found.interval is None:
        rung.unused_samples = [*rung.unused_samples, *(run.to_dict() for run in found.runs)]
    if rung.numerics is not None and found.held_out is not None:
        verdict = "failed" if found.held_out.verdict == "worse" else screening.gate.verdict if screening.gate else "pending"
        rung.numerics |= {"verdict": verdict, "why": found.held_out.why}
