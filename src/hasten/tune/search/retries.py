"""Retry candidates that gained too little alone: in pairs that may only pay together, and longer for small gains.

A pair of fresh processes counts little more than a second of updates. That is enough for most gains. If updates differ by
nature, or kernels are compiled for every new shape, it leaves a small gain open that a whole run would show. When everything
else was tried and time is left, such a candidate is screened again under the current plan, and confirmed for longer.
"""

from __future__ import annotations

from dataclasses import replace

from hasten.core.errors import TrialError
from hasten.report.evidence import Candidate
from hasten.tune.objective import Goal
from hasten.tune.search.candidate import NOT_TRIED, failure_words, with_screening
from hasten.tune.search.confirm import decide_and_confirm
from hasten.tune.search.screening import Screen
from hasten.tune.search.state import Adopted, Result, Results, SearchState

LONGER_S = 3.0
"""Seconds of updates that each process of a pair counts in the second, longer confirmation."""


def try_pairs(state: SearchState, screen: Screen) -> Results:
    """Try pairs of techniques that may only pay together, if each passed its gates alone but gained too little."""
    if state.config.objective.goal is Goal.MEMORY:
        return
    for position in range(len(state.candidates)):
        kind = state.config.catalogue.get(state.candidates[position].name)
        for name in kind.card.pays_with if kind else ():
            first = state.candidates[position]  # each tried pair changes its record
            partner = next((item for item in state.candidates if item.name == name and _is_idle(item)), None)
            if partner is not None and _is_idle(first):
                yield from _try_pair(state, screen, first, partner)


def look_again(state: SearchState, screen: Screen) -> Results:
    """Screen and confirm again the candidates that were faster in turns but left open by fresh processes."""
    if state.config.objective.goal is Goal.MEMORY:
        return
    for candidate in [item for item in state.candidates if is_open(item, state.config.floor_frac)]:
        yield from _look_again(state, screen, candidate)


def is_open(candidate: Candidate, floor_frac: float) -> bool:
    """Return whether fresh processes left a candidate open whose measured gain would count."""
    comparison = candidate.comparison
    if candidate.outcome != "undecided" or comparison is None or comparison.kind != "confirmation":
        return False
    return comparison.ratio is not None and comparison.ratio > 1.0 + floor_frac


def _is_idle(candidate: Candidate) -> bool:
    """Return whether a candidate was tried and passed every gate, but was not faster alone."""
    passed = candidate.numerics is not None and candidate.numerics.verdict == "passed"
    return passed and candidate.comparison is not None and candidate.outcome in ("refused", "undecided")


def _try_pair(state: SearchState, screen: Screen, first: Candidate, second: Candidate) -> Results:
    one, other = (state.config.catalogue[item.name](**item.settings) for item in (first, second))
    if state.clashes(one) or state.clashes(other):
        return
    if not state.has_room(state.screening_s(one) + state.screening_s(other)):
        why = f"together with {second.name}: {NOT_TRIED}, the rest of the budget is reserved for the final proof"
        yield Result((replace(first, reason=f"{first.reason}; {why}"),), quiet=True)
        return
    screen.say(f"trying {first.name} together with {second.name}")
    plan = state.plan.plus(one).plus(other)
    both = ((first, second), (second, first))
    try:
        screening = screen.screen(one, plan, state.turn_updates, partner=other)
    except TrialError as error:
        why = f"the trial failed ({failure_words(error)})"
        yield Result(tuple(replace(i, reason=f"{i.reason}; together with {j.name} {why}") for i, j in both))
        return
    decision = decide_and_confirm(state, screen, one, plan, screening)
    changed = [replace(i, reason=f"{i.reason}; together with {j.name}: {decision.reason}") for i, j in both]
    if decision.outcome != "applied":
        yield Result(tuple(changed))
        return
    applied = (replace(item, outcome="applied") for item in changed)
    adopted = tuple(with_screening(item, decision.screening, state.update_s) for item in applied)
    yield Result(adopted, Adopted(name="", warming_s=decision.screening.warming_s))


def _look_again(state: SearchState, screen: Screen, candidate: Candidate) -> Results:
    optimization = state.config.catalogue[candidate.name](**candidate.settings)
    if state.clashes(optimization) or not state.has_room(state.screening_s(optimization)):
        return
    screen.say(f"measuring {candidate.name} again, for longer")
    plan = state.plan.plus(optimization)
    try:
        screening = screen.screen(optimization, plan, state.turn_updates)
    except TrialError as error:
        reason = f"{candidate.reason}; a longer measurement failed ({failure_words(error)})"
        yield Result((replace(candidate, reason=reason),))
        return
    decision = decide_and_confirm(state, screen, optimization, plan, screening, seconds=LONGER_S)
    changed = replace(candidate, reason=f"{candidate.reason}; in a longer measurement: {decision.reason}")
    if decision.outcome == "undecided":
        yield Result((changed,))
        return
    changed = with_screening(replace(changed, outcome=decision.outcome), decision.screening, state.update_s)
    if decision.outcome != "applied":
        yield Result((changed,))
        return
    interval = decision.screening.comparison.interval
    speed = interval.ratio if interval else 1.0
    yield Result((changed,), Adopted(name=changed.name, speed=speed, warming_s=decision.screening.warming_s))
