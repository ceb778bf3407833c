"""What fresh processes left open is looked at again, for longer, when everything else was tried and time is left.

A pair of fresh processes counts little more than a second of updates. That is enough for most gains; where updates differ by
nature, or kernels are made for every new shape, it leaves a small gain open which a run would have. By then the plan has
changed as well, so the candidate is screened anew under it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hasten.core.errors import TrialError
from hasten.tune.objective import Goal
from hasten.tune.search.candidate import Candidate
from hasten.tune.search.noting import fill
from hasten.tune.search.screening import TURNS
from hasten.tune.search.verdict import needs_confirmation

if TYPE_CHECKING:
    from hasten.tune.search.search import Ladder

LONGER_S = 3.0
"""Seconds of updates that each process of a pair counts now."""


def try_again(ladder: Ladder) -> None:
    """Screen and confirm again what was faster in turns and left open by fresh processes."""
    if ladder.objective.goal is Goal.MEMORY:
        return
    for rung in [rung for rung in ladder.rungs if is_open(rung, ladder.screen.floor_frac)]:
        _look_again(ladder, rung)


def is_open(rung: Candidate, floor_frac: float) -> bool:
    """Whether fresh processes left a candidate open whose gain, as they saw it, would count."""
    seen = rung.comparison or {}
    return rung.outcome == "undecided" and seen.get("kind") == "confirmation" and seen["ratio"] > 1.0 + floor_frac


def _look_again(ladder: Ladder, rung: Candidate) -> None:
    optimization = ladder.catalogue[rung.name](**rung.settings)
    screening_s = ladder.costs.screening_s(TURNS, ladder.turn_updates, ladder.trial_update_s) + optimization.card.setup_s
    if ladder.clashes(optimization) or ladder.budget.left - screening_s < ladder.reserve():
        return
    ladder.say(f"looking at {rung.name} again, for longer")
    plan = ladder.screen.plan.plus(optimization)
    try:
        screening = ladder.screen.screen(optimization, plan, ladder.turn_updates)
    except TrialError as error:
        rung.reason += f"; a second look failed ({error.kind.replace('_', ' ')})"
        return
    outcome, reason = ladder.decide(optimization, screening)
    if outcome == "applied" and needs_confirmation(screening.comparison, ladder.objective):
        outcome, reason = ladder.confirm(optimization, plan, screening, seconds=LONGER_S)
    ladder.say(f"{outcome}: {rung.name}: {reason}")
    rung.reason += f"; a second, longer look: {reason}"
    if outcome == "undecided":
        ladder.save()
        return
    rung.outcome = outcome
    fill(rung, screening, ladder.screen, ladder.update_s)
    ladder.save()
    if outcome == "applied":
        ladder.keep(rung, screening)
