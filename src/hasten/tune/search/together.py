"""Try two candidates at once that may only pay together, where each was harmless alone and brought too little."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hasten.core.errors import TrialError
from hasten.tune.objective import Goal
from hasten.tune.search.candidate import Candidate
from hasten.tune.search.noting import NOT_TRIED, fill
from hasten.tune.search.screening import TURNS
from hasten.tune.search.verdict import needs_confirmation

if TYPE_CHECKING:
    from hasten.tune.search.search import Ladder


def try_pairs(ladder: Ladder) -> None:
    """Try together what may only pay together, where each was harmless alone and brought too little."""
    if ladder.objective.goal is Goal.MEMORY:
        return
    for rung in list(ladder.rungs):
        for name in ladder.catalogue[rung.name].card.pays_with if rung.name in ladder.catalogue else ():
            partner = next((other for other in ladder.rungs if other.name == name and _brought_nothing(other)), None)
            if partner is not None and _brought_nothing(rung):
                _try_pair(ladder, rung, partner)


def _try_pair(ladder: Ladder, rung: Candidate, partner: Candidate) -> None:
    one, other = (ladder.catalogue[item.name](**item.settings) for item in (rung, partner))
    needed = (
        2 * ladder.costs.screening_s(TURNS, ladder.turn_updates, ladder.trial_update_s)
        + one.card.setup_s
        + other.card.setup_s
    )
    if ladder.clashes(one) or ladder.clashes(other):
        return
    if ladder.budget.left - needed < ladder.reserve():
        rung.reason += f"; together with {partner.name}: {NOT_TRIED}, the budget must keep enough for the final proof"
        return
    ladder.say(f"trying {rung.name} together with {partner.name}")
    plan = ladder.screen.plan.plus(one).plus(other)
    try:
        screening = ladder.screen.screen(one, plan, ladder.turn_updates, beside=other)
    except TrialError as error:
        for item, beside in ((rung, partner), (partner, rung)):
            item.reason += f"; together with {beside.name} the trial failed ({error.kind.replace('_', ' ')})"
        return
    outcome, reason = ladder.decide(one, screening)
    if outcome == "applied" and needs_confirmation(screening.comparison, ladder.objective):
        outcome, reason = ladder.confirm(one, plan, screening)
    ladder.say(f"{outcome}: {rung.name} together with {partner.name}: {reason}")
    for item, beside in ((rung, partner), (partner, rung)):
        item.reason += f"; together with {beside.name}: {reason}"
        if outcome == "applied":
            fill(item, screening, ladder.screen, ladder.update_s)
            item.outcome = "applied"
    if outcome == "applied":
        ladder.newest = ""
        ladder.screen.promote()
        ladder.refresh()
    ladder.save()


def _brought_nothing(rung: Candidate) -> bool:
    """Whether a candidate was tried and passed every gate, but was no faster by itself."""
    passed = bool(rung.numerics) and (rung.numerics or {})["verdict"] == "passed"
    return passed and rung.comparison is not None and rung.outcome in ("refused", "undecided")
