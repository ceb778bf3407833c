"""The part of the climb for what changes no update: reports, checkpoints and validation, judged by the time of an epoch.

It comes after everything that makes updates shorter, when what stands around them has its largest share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hasten.core.errors import TrialError
from hasten.core.optimization import Optimization
from hasten.tune.search.event_design import design_event
from hasten.tune.search.event_screening import EventScreening, screen_event
from hasten.tune.search.noting import no_time
from hasten.tune.search.screening import TURNS

if TYPE_CHECKING:
    from hasten.tune.search.search import Ladder

ROUNDS = TURNS + 3
"""Rounds of both arms that a screening takes: its turns, and twice before them to get ready."""


def try_events(ladder: Ladder) -> None:
    """Try every candidate that acts on an event around the updates, best first, as long as the budget has room."""
    while waiting := ladder.candidates(events=True):
        _, optimization, max_gain = waiting[0]
        try:
            needed = _screening_s(ladder, optimization)
            if ladder.budget.left - needed < ladder.reserve():
                why = no_time(needed)
                ladder.note(optimization, "undecided", why, predicted=max_gain)
            else:
                _try(ladder, optimization, max_gain)
        except TrialError as error:
            ladder.note_failure(optimization, error, max_gain)


def _screening_s(ladder: Ladder, optimization: Optimization) -> float:
    """Seconds of screening it: in each round both arms do their updates with the events and again without."""
    design = design_event(optimization, ladder.facts)
    event_s: float = getattr(ladder.facts, f"{design.event}_s") / design.scale
    both_s = 2 * (2 * design.updates * design.update_s + design.repeats * event_s)
    return float(ladder.costs.start_s + optimization.card.setup_s + ROUNDS * both_s)


def _try(ladder: Ladder, optimization: Optimization, max_gain: float) -> None:
    ladder.say(f"trying {optimization.card.name} by the time of an epoch")
    ladder.screen.base.losses.clear()  # those of the last screening: no curve of this one
    screening = screen_event(ladder.screen, optimization, ladder.screen.plan.plus(optimization), ladder.facts)
    outcome, reason = ladder.decide(optimization, screening)
    if screening.comparison.interval is not None:
        reason += _in_words(screening)
    rung = ladder.note(optimization, outcome, reason, predicted=max_gain, screening=screening)
    if rung.outcome == "applied":
        ladder.screen.promote()
        ladder.refresh(event=screening.design.event, lost_s=screening.lost_s["B"])


def _in_words(screening: EventScreening) -> str:
    """What the event cost an epoch before and after."""
    before, after = (screening.lost_s[arm] for arm in "AB")
    return f", of an epoch's time; each {screening.design.event} costs {after:.3g} s where it cost {before:.3g} s"
