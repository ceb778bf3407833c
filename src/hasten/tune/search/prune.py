"""Remove every adopted technique but the newest from the plan once. Techniques that no longer pay are dropped."""

from __future__ import annotations

from dataclasses import replace

from hasten.core.card import Judge
from hasten.core.errors import TrialError
from hasten.core.stats import Verdict
from hasten.report.evidence import Candidate
from hasten.tune.objective import Goal
from hasten.tune.search.ranking import acts_on_event
from hasten.tune.search.screening import Screen
from hasten.tune.search.state import Adopted, Result, Results, SearchState

MARGIN = 1.5
"""Factor on the estimated time of a screening without one technique."""


def prune(state: SearchState, screen: Screen) -> Results:
    """Screen the plan without each technique, smallest gain first. The parts of a pair are tested separately."""
    for candidate in _older(state):
        needed_s = MARGIN * state.screening_s() + (candidate.setup_seconds or 0.0)
        if len(state.plan.names) < 2 or not state.has_room(needed_s):
            continue
        screen.say(f"checking whether {candidate.name} still pays")
        try:
            without = screen.screen(None, state.plan.minus(candidate.name), state.turn_updates).comparison
        except TrialError as error:
            reason = f"{candidate.reason}; the plan without it could not be measured: {error}"
            yield Result((replace(candidate, reason=reason),), quiet=True)
            continue
        if without.interval is None:
            continue
        runs = f"without it the job runs at {without.interval.ratio:.2f}x"
        if without.verdict in (Verdict.SAME, Verdict.FASTER):
            reason = f"no longer pays alongside the others: {runs}"
            yield Result((replace(candidate, outcome="pruned", reason=reason),), Adopted(name=None, profiled=False))
        else:
            yield Result((replace(candidate, reason=f"{candidate.reason}; {runs}"),), quiet=True)


def _older(state: SearchState) -> list[Candidate]:
    """Return the adopted candidates judged by update time, without the newest, which was measured on top of the others."""
    prunable = _prunable(state)
    adopted = [item for item in state.candidates if item.outcome == "applied" and item.name in prunable]
    newest = adopted[-1].name if adopted and state.newest is None else state.newest
    older = [item for item in adopted if item.name != newest]
    return sorted(older, key=lambda item: (item.comparison.ratio if item.comparison else None) or 1.0)


def _prunable(state: SearchState) -> set[str]:
    """Return the plan's techniques that must pay by update time. Memory techniques pay with memory instead."""
    if state.config.objective.goal is Goal.MEMORY:
        return set()
    by_time = (item.card for item in state.plan.optimizations if item.card.judged_by is Judge.UPDATE_TIME)
    return {card.name for card in by_time if not (card.memory_technique or acts_on_event(state, card))}
