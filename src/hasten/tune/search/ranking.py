"""Which techniques are worth a trial now, best first; and why the others are not. Pure functions of the state."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from hasten.core.card import Card, Judge
from hasten.core.optimization import Fit, Optimization
from hasten.report.evidence import Candidate
from hasten.tune.objective import Goal
from hasten.tune.search.candidate import is_about, names_of
from hasten.tune.search.state import SearchState

MEMORY_SHORT = 0.8
BOTTLENECK_BONUS = 2.0


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """A setting worth a trial: the higher the score, the sooner; `max_gain` is the most it could bring."""

    optimization: Optimization
    max_gain: float
    score: float


def rank(state: SearchState, judge: Judge = Judge.UPDATE_TIME, *, events: bool = False) -> list[Ranked]:
    """What fits now, is judged so and was not tried, best first.

    Args:
        state: The present state.
        judge: What decides whether it pays.
        events: Those that act on an event around the updates, instead of those that act on updates.
    """
    ranked = []
    for name, kind in state.config.catalogue.items():
        card = kind.card
        if name in state.plan.names or card.judged_by is not judge or acts_on_event(state, card) is not events:
            continue
        fit = kind.fit(state.facts)
        if not fit.fits or _is_blocked(state, card, fit.max_gain):
            continue
        for position, setting in enumerate(fit.settings):
            if not any(is_about(candidate, setting) for candidate in state.candidates) and not state.clashes(setting):
                score = _score(state, card, fit) / (1 + position)
                ranked.append(Ranked(optimization=setting, max_gain=fit.max_gain, score=score))
    return sorted(ranked, key=lambda item: -item.score)


def acts_on_event(state: SearchState, card: Card) -> bool:
    """Whether a technique is measured by an event around the updates."""
    return state.config.events_apart and bool(card.event)


def untried(state: SearchState) -> Iterator[Candidate]:
    """Every technique without a candidate, refused for the reason that holds at the end of the search."""
    known = names_of(state.candidates)
    for name, kind in state.config.catalogue.items():
        if name in state.plan.names or name in known:
            continue
        fit = kind.fit(state.facts)
        bounded = fit.fits and kind.card.judged_by is Judge.UPDATE_TIME
        yield Candidate(
            name=name,
            settings=fit.settings[0].settings() if fit.settings else {},
            outcome="refused",
            reason=fit.reason or _why_blocked(state, kind.card, fit),
            predicted_max_gain=fit.max_gain if bounded else None,
        )


def _score(state: SearchState, card: Card, fit: Fit) -> float:
    """How soon to try it: ceiling times prior; where memory is wanted, what costs no time goes first."""
    if state.config.objective.goal is Goal.MEMORY:
        return card.prior + (0.0 if card.memory_technique else 1.0)
    if card.judged_by is Judge.TIME_TO_TARGET:
        return card.prior
    bonus = BOTTLENECK_BONUS if card.relieves is state.diagnosis.name else 1.0
    return math.log(fit.max_gain) * (card.prior if fit.prior is None else fit.prior) * bonus


def _is_blocked(state: SearchState, card: Card, max_gain: float) -> bool:
    """Whether it cannot bring enough, by its ceiling; memory techniques are tried only where memory is short."""
    if state.config.objective.goal is Goal.MEMORY:
        return not card.saves_memory
    if card.memory_technique:
        return state.facts.peak_memory_bytes <= MEMORY_SHORT * state.facts.memory_limit_bytes
    if card.judged_by is Judge.TIME_TO_TARGET:  # what an update teaches has no ceiling in its phases
        return False
    return max_gain < 1.0 + state.config.floor_frac


def _why_blocked(state: SearchState, card: Card, fit: Fit) -> str:
    if state.config.objective.goal is Goal.MEMORY and not card.saves_memory:
        return "it lowers no peak memory, which is what is wanted"
    if card.memory_technique:
        peak, limit = state.facts.peak_memory_bytes / 2**30, state.facts.memory_limit_bytes / 2**30
        return f"it buys memory with time, and memory is not short: {peak:.1f} of {limit:.1f} GiB at the peak"
    if why := next(filter(None, map(state.clashes, fit.settings)), ""):
        return why
    ceiling, floor = f"{fit.max_gain:.2f}x at most", f"{state.config.floor_frac:.1%}"
    return f"by its measured ceiling it could bring {ceiling}, and less than {floor} cannot be told here"
