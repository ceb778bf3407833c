"""Try candidates that act on reports, checkpoints or validation instead of updates, judged by the time of an epoch.

They come after everything that makes updates shorter, because then the work around the updates has its largest share.
"""

from __future__ import annotations

from dataclasses import replace

from hasten.core.errors import TrialError
from hasten.core.optimization import Optimization
from hasten.tune.search.candidate import failed, no_time, noted, with_screening
from hasten.tune.search.event_design import design_event
from hasten.tune.search.event_screening import EventScreening, screen_event
from hasten.tune.search.ranking import Ranked, rank
from hasten.tune.search.screening import TURNS, Screen
from hasten.tune.search.state import Adopted, Result, Results, SearchState
from hasten.tune.search.verdict import decide

ROUNDS = TURNS + 3
"""Rounds of both arms in a screening: its turns, and the equivalent of three more for preparation."""


def try_events(state: SearchState, screen: Screen) -> Results:
    """Try every candidate that acts on an event around the updates, best first, while the budget has room."""
    while ranked := rank(state, events=True):
        optimization, max_gain = ranked[0].optimization, ranked[0].max_gain
        try:
            needed_s = _screening_s(state, optimization)
            if state.has_room(needed_s):
                yield _try(state, screen, ranked[0])
            else:
                yield Result((noted(optimization, "undecided", no_time(needed_s), max_gain),), quiet=True)
        except TrialError as error:
            yield Result((failed(optimization, error, max_gain),))


def _screening_s(state: SearchState, optimization: Optimization) -> float:
    """Return the seconds of screening a candidate: in each round both arms do their updates with and without the events."""
    design = design_event(optimization, state.facts)
    event_s: float = getattr(state.facts, f"{design.event}_s") / design.scale
    both_s = 2 * (2 * design.updates * design.update_s + design.repeats * event_s)
    return float(state.config.costs.start_s + optimization.card.setup_s + ROUNDS * both_s)


def _try(state: SearchState, screen: Screen, ranked: Ranked) -> Result:
    optimization = ranked.optimization
    screen.say(f"trying {optimization.card.name} by the time of an epoch")
    screening = screen_event(screen, optimization, state.plan.plus(optimization), state.facts)
    outcome, reason = decide(optimization, screening, state)
    if screening.comparison.interval is not None:
        reason += _cost_words(screening)
    candidate = with_screening(noted(optimization, outcome, reason, ranked.max_gain), screening, state.update_s)
    candidate = replace(candidate, event=screening.design.event)
    if outcome != "applied":
        return Result((candidate,))
    return Result((candidate,), Adopted(name=None, event=screening.design.event, lost_s=screening.lost_s["B"]))


def _cost_words(screening: EventScreening) -> str:
    """Return what the event cost per epoch before and after, in words."""
    before, after = (screening.lost_s[arm] for arm in "AB")
    return f", of an epoch's time; each {screening.design.event} costs {after:.3g} s instead of {before:.3g} s"
