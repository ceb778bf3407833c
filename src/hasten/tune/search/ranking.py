"""Decide which techniques are worth a trial now, best first, and why the others are not. Pure functions of the state."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from hasten.core.card import Card, Judge
from hasten.core.facts import Facts
from hasten.core.optimization import Fit, Optimization
from hasten.core.seams import Seam
from hasten.report.evidence import Candidate
from hasten.script.watch.by_hand import BY_HAND, NO_OPTIMIZER_WORDS
from hasten.tune.objective import Goal
from hasten.tune.search.candidate import is_about, names_of
from hasten.tune.search.state import SearchState

MEMORY_SHORT = 0.8
"""Share of the memory limit above which memory counts as short."""
BOTTLENECK_BONUS = 2.0
"""Factor on the score of a technique that relieves the diagnosed bottleneck."""


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """A setting worth a trial. A higher score is tried sooner; `max_gain` is the largest possible gain."""

    optimization: Optimization
    max_gain: float
    score: float


def rank(state: SearchState, judge: Judge = Judge.UPDATE_TIME, *, events: bool = False) -> list[Ranked]:
    """Return the untried settings that fit now and are judged by `judge`, best first.

    Args:
        state: The current state.
        judge: What decides whether a technique pays.
        events: Return techniques that act on an event around the updates, instead of those that act on updates.
    """
    ranked = []
    for name, kind in state.config.catalogue.items():
        card = kind.card
        if name in state.plan.names or card.judged_by is not judge or acts_on_event(state, card) is not events:
            continue
        fit = _fit(kind, state.facts)
        if not fit.fits or _is_blocked(state, card, fit.max_gain):
            continue
        for position, setting in enumerate(fit.settings):
            if not any(is_about(candidate, setting) for candidate in state.candidates) and not state.clashes(setting):
                score = _score(state, card, fit) / (1 + position)
                ranked.append(Ranked(optimization=setting, max_gain=fit.max_gain, score=score))
    return sorted(ranked, key=lambda item: -item.score)


def _fit(kind: type[Optimization], facts: Facts) -> Fit:
    """Return whether a technique applies. Without an optimizer, none that acts on it does."""
    if kind.card.seam is Seam.OPTIMIZER and facts.job.optimizer_class == BY_HAND:
        return Fit.no(NO_OPTIMIZER_WORDS)
    return kind.fit(facts)


def acts_on_event(state: SearchState, card: Card) -> bool:
    """Return whether a technique is measured by an event around the updates."""
    return state.config.events_apart and bool(card.event)


def untried(state: SearchState) -> Iterator[Candidate]:
    """Yield a refused candidate for every technique without one, with the reason that holds at the end of the search."""
    known = names_of(state.candidates)
    for name, kind in state.config.catalogue.items():
        if name in state.plan.names or name in known:
            continue
        fit = _fit(kind, state.facts)
        bounded = fit.fits and kind.card.judged_by is Judge.UPDATE_TIME
        yield Candidate(
            name=name,
            settings=fit.settings[0].settings() if fit.settings else {},
            outcome="refused",
            reason=fit.reason or _why_blocked(state, kind.card, fit),
            predicted_max_gain=fit.max_gain if bounded else None,
        )


def _score(state: SearchState, card: Card, fit: Fit) -> float:
    """Return the priority of a technique: ceiling times prior. If memory is the goal, those that cost no time come first."""
    if state.config.objective.goal is Goal.MEMORY:
        return card.prior + (0.0 if card.memory_technique else 1.0)
    if card.judged_by is Judge.TIME_TO_TARGET:
        return card.prior
    bonus = BOTTLENECK_BONUS if card.relieves is state.diagnosis.name else 1.0
    return math.log(fit.max_gain) * (card.prior if fit.prior is None else fit.prior) * bonus


def _is_blocked(state: SearchState, card: Card, max_gain: float) -> bool:
    """Return whether a technique is not worth a trial: its ceiling is too low, or it saves memory that is not short."""
    if state.config.objective.goal is Goal.MEMORY:
        return not card.saves_memory
    if card.memory_technique:
        return state.facts.peak_memory_bytes <= MEMORY_SHORT * state.facts.memory_limit_bytes
    if card.judged_by is Judge.TIME_TO_TARGET:  # the phases give no ceiling for what an update teaches
        return False
    return max_gain < 1.0 + state.config.floor_frac


def _why_blocked(state: SearchState, card: Card, fit: Fit) -> str:
    if state.config.objective.goal is Goal.MEMORY and not card.saves_memory:
        return "it does not lower peak memory, which is the goal"
    if card.memory_technique:
        peak, limit = state.facts.peak_memory_bytes / 2**30, state.facts.memory_limit_bytes / 2**30
        return f"it trades time for memory, and memory is not short: peak {peak:.1f} GiB of {limit:.1f} GiB"
    if why := next(filter(None, map(state.clashes, fit.settings)), ""):
        return why
    ceiling, floor = f"at most {fit.max_gain:.2f}x", f"{state.config.floor_frac:.1%}"
    return f"measured ceiling: {ceiling}, below the noise floor of {floor}"
