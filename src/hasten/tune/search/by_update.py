"""Try candidates by the time of an update, one technique at a time. If one is faster, try its other settings as well.

Techniques list their settings from most to least promising, which is a guess: any of three allocators may be the fastest on
a given job. Once one setting is faster, others are screened against the same plan, and the fastest of them is adopted, or
the simplest of those that cannot be distinguished from it. A setting that is not faster is recorded, and the next setting is
ranked like any other candidate.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from hasten.core.errors import TrialError
from hasten.core.optimization import Optimization
from hasten.core.plan import Plan
from hasten.core.stats import MIN_FLOOR_FRAC
from hasten.report.evidence import Candidate
from hasten.tune.objective import Goal
from hasten.tune.search.candidate import (
    failed,
    failure_words,
    is_about,
    no_time,
    noted,
    with_comparison,
    with_screening,
)
from hasten.tune.search.confirm import Decision, confirm, confirming_s
from hasten.tune.search.ranking import Ranked, rank
from hasten.tune.search.screening import Screen, Screening
from hasten.tune.search.state import Adopted, Result, Results, SearchState
from hasten.tune.search.verdict import decide, needs_confirmation

MOST_OTHERS = 2
"""Maximum number of other settings to screen after the first faster one. Each costs as much as another technique."""


@dataclass(frozen=True, kw_only=True)
class _Faster:
    """A setting that is faster in turns, with its gain."""

    optimization: Optimization
    plan: Plan
    screening: Screening
    candidate: Candidate
    ratio: float


def try_candidates(state: SearchState, screen: Screen) -> Results:
    """Try the best candidate repeatedly, until none is left or the time is up."""
    while ranked := rank(state):
        best = ranked[0]
        needed_s = state.screening_s(best.optimization)
        if state.has_room(needed_s):
            yield from _try(state, screen, best)
        else:
            yield Result((noted(best.optimization, "undecided", no_time(needed_s), best.max_gain),), quiet=True)


def _try(state: SearchState, screen: Screen, best: Ranked) -> Results:
    """Screen a candidate, and its other settings if it is faster. Adopt the first of the best that is confirmed."""
    first = _screened(state, screen, best.optimization, best.max_gain)
    if isinstance(first, Candidate):
        yield Result((first,))
        return
    faster = [first]
    for optimization in _other_settings(state, first):
        if not state.has_room(_confirmed_s(state, first)):
            break
        other = _screened(state, screen, optimization, best.max_gain)
        if isinstance(other, Candidate):
            yield Result((other,))
        else:
            faster.append(other)
    faster = _best_first(faster)
    for position, item in enumerate(faster):
        decision = _confirmed(state, screen, item)
        comparison = decision.screening.comparison
        candidate = with_comparison(item.candidate, comparison, item.screening.setup_s, state.update_s)
        candidate = replace(candidate, outcome=decision.outcome, reason=decision.reason)
        if decision.outcome != "applied":
            yield Result((candidate,))
            continue
        ratio = comparison.interval.ratio if comparison.interval else 1.0
        slower = tuple(_left_behind(other, item) for other in faster[position + 1 :])
        yield Result((candidate, *slower), Adopted(name=candidate.name, speed=ratio, warming_s=item.screening.warming_s))
        return


def settings_words(optimization: Optimization) -> str:
    """Return the settings on one line."""
    return ", ".join(f"{name}={value}" for name, value in optimization.settings().items())


def progress_words(state: SearchState) -> str:
    """Return how many candidates there are to try by update time, and the speed of the plan so far."""
    tried = {item.name for item in state.candidates if item.tried}
    left = {item.optimization.card.name for item in rank(state)} - tried
    return f"candidate {len(tried) + 1} of {len(tried) + max(len(left), 1)}, best so far {state.speed:.2f}x"


def _screened(state: SearchState, screen: Screen, optimization: Optimization, max_gain: float) -> Candidate | _Faster:
    """Screen a setting. Returns the candidate to record, or the faster setting."""
    screen.say(f"trying {f'{optimization.card.name} {settings_words(optimization)}'.rstrip()} ({progress_words(state)})")
    plan = state.plan.plus(optimization)
    updates = state.turn_updates * (2 if "order" in optimization.card.claims else 1)
    try:
        screening = screen.screen(optimization, plan, updates)
    except TrialError as error:
        return failed(optimization, error, max_gain)
    outcome, reason = decide(optimization, screening, state)
    candidate = with_screening(noted(optimization, outcome, reason, max_gain), screening, state.update_s)
    interval = screening.comparison.interval
    if outcome != "applied" or interval is None:
        return candidate
    return _Faster(
        optimization=optimization, plan=plan, screening=screening, candidate=candidate, ratio=interval.ratio
    )  # fmt: skip


def _other_settings(state: SearchState, first: _Faster) -> list[Optimization]:
    """Return untried settings of a technique that is faster, most promising first; none if memory is the goal."""
    card = first.optimization.card
    if state.config.objective.goal is Goal.MEMORY or card.memory_technique:
        return []
    offered, known = state.config.catalogue[card.name].fit(state.facts).settings, (*state.candidates, first.candidate)
    untried = [item for item in offered if not any(is_about(candidate, item) for candidate in known)]
    return [item for item in untried if not state.clashes(item)][:MOST_OTHERS]


def _confirmed_s(state: SearchState, first: _Faster) -> float:
    """Return the seconds of screening another setting, including the confirmation of a small gain."""
    small = needs_confirmation(first.screening.comparison, state.config.objective)
    return state.screening_s(first.optimization) + (confirming_s(state, first.optimization) if small else 0.0)


def _confirmed(state: SearchState, screen: Screen, item: _Faster) -> Decision:
    """Decide on a setting that is faster in turns. If it is kept, its process is the challenger afterwards."""
    decision = Decision("applied", item.candidate.reason, item.screening)
    if needs_confirmation(item.screening.comparison, state.config.objective):
        decision = confirm(state, screen, item.optimization, item.plan, item.screening)
    if decision.outcome == "applied" and not screen.challenges(item.plan):
        try:
            screen.stand_by(item.plan)
        except TrialError as error:
            return replace(decision, outcome="failed", reason=f"{failure_words(error)} when it was restarted: {error}")
    return decision


def _best_first(faster: list[_Faster]) -> list[_Faster]:
    """Order settings by speed. Of those that cannot be distinguished from the fastest, the simplest comes first."""
    least = max(item.ratio for item in faster) / (1.0 + MIN_FLOOR_FRAC)
    return sorted(faster, key=lambda item: (item.ratio < least, item.ratio >= least and _changed(item), -item.ratio))


def _changed(item: _Faster) -> int:
    """Return how many settings differ from the technique's defaults."""
    optimization = item.optimization
    return sum(getattr(optimization, each.name) != each.default for each in fields(optimization))


def _left_behind(other: _Faster, kept: _Faster) -> Candidate:
    how = "faster still" if kept.ratio > other.ratio else "simpler, and as fast"
    better = f"{settings_words(kept.optimization)} is {how}: {kept.ratio:.2f}x in turns"
    return replace(other.candidate, outcome="refused", reason=f"{other.candidate.reason}; {better}")
