"""Try a candidate; where it is faster, other settings of its technique as well, and the fastest of them stays.

Techniques list their settings in the order in which they are likely to be best, and that is a guess: of three allocators
each may be the fastest on a job. What is not faster is noted, and the next setting is a candidate like any other.
Once one is, others are screened against the same plan, so that all of them were measured against one base.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hasten.core.errors import TrialError
from hasten.core.optimization import Optimization
from hasten.core.plan import Plan
from hasten.tune.objective import Goal
from hasten.tune.search.candidate import Candidate, Outcome
from hasten.tune.search.noting import fill_times, rung_of
from hasten.tune.search.screening import TURNS, Screening
from hasten.tune.search.verdict import needs_confirmation

if TYPE_CHECKING:
    from hasten.tune.search.search import Ladder

MOST_OTHERS = 2
"""So many other settings are screened beside the first that is faster: each costs what another technique would."""


@dataclass(kw_only=True)
class _Found:
    """A setting that its screening would apply.

    Attributes:
        optimization: The technique with that setting.
        plan: The present plan with it.
        screening: Its screening.
        rung: Its rung, not among those of the ladder yet.
        ratio: Its gain in turns.
    """

    optimization: Optimization
    plan: Plan
    screening: Screening
    rung: Candidate
    ratio: float


def attempt(ladder: Ladder, optimization: Optimization, max_gain: float) -> None:
    """Screen a candidate under the present plan, note what became of it, and go on with what is to be kept."""
    first = _look(ladder, optimization, max_gain)
    if first is None:
        return
    found = [first]
    for other in _others(ladder, first):
        if not _has_room(ladder, first):
            break
        if another := _look(ladder, other, max_gain):
            found.append(another)
    found.sort(key=lambda item: -item.ratio)
    for number, item in enumerate(found):
        outcome, reason = _confirmed(ladder, item)
        item.rung.outcome, item.rung.reason = outcome, reason
        ladder.add(item.rung)
        if outcome == "applied":
            for slower in found[number + 1 :]:
                slower.rung.outcome = "refused"
                slower.rung.reason += f"; {brief(item.optimization)} is faster still: {item.ratio:.2f}x in turns"
                ladder.add(slower.rung)
            ladder.keep(item.rung, item.screening)
            return


def brief(optimization: Optimization) -> str:
    """The settings in a line."""
    return ", ".join(f"{name}={value}" for name, value in optimization.settings().items())


def _look(ladder: Ladder, optimization: Optimization, max_gain: float) -> _Found | None:
    """Screen a setting. What is not to be applied is noted; so is a trial that failed."""
    ladder.say(f"trying {optimization.card.name} {brief(optimization)}".rstrip())
    plan = ladder.screen.plan.plus(optimization)
    updates = ladder.turn_updates * (2 if "order" in optimization.card.claims else 1)
    try:
        screening = ladder.screen.screen(optimization, plan, updates)
    except TrialError as error:
        ladder.note_failure(optimization, error, max_gain)
        return None
    outcome, reason = ladder.decide(optimization, screening)
    interval = screening.comparison.interval
    if outcome != "applied" or interval is None:
        ladder.note(optimization, outcome, reason, predicted=max_gain, screening=screening)
        return None
    rung = rung_of(optimization, outcome, reason, max_gain)
    ladder.fill(rung, screening)
    return _Found(optimization=optimization, plan=plan, screening=screening, rung=rung, ratio=interval.ratio)


def _others(ladder: Ladder, first: _Found) -> list[Optimization]:
    """Other settings of a technique that is faster, untried, likeliest first; none where it is memory that counts."""
    card = first.optimization.card
    if ladder.objective.goal is Goal.MEMORY or card.memory_technique:
        return []
    offered = ladder.catalogue[card.name].fit(ladder.facts).settings
    untried = [item for item in offered if not any(rung.is_about(item) for rung in (*ladder.rungs, first.rung))]
    return [item for item in untried if not ladder.clashes(item)][:MOST_OTHERS]


def _has_room(ladder: Ladder, first: _Found) -> bool:
    """Whether another screening fits, and leaves the time to confirm a small gain."""
    needed = ladder.costs.screening_s(TURNS, ladder.turn_updates, ladder.trial_update_s) + first.optimization.card.setup_s
    if needs_confirmation(first.screening.comparison, ladder.objective):
        needed += ladder.confirming_s(first.optimization)
    return ladder.budget.left - needed >= ladder.reserve()


def _confirmed(ladder: Ladder, item: _Found) -> tuple[Outcome, str]:
    """What becomes of a setting that is faster in turns; where it is to stay, its process is the challenger."""
    outcome: Outcome = "applied"
    reason = item.rung.reason
    if needs_confirmation(item.screening.comparison, ladder.objective):
        outcome, reason = ladder.confirm(item.optimization, item.plan, item.screening)
        fill_times(item.rung, item.screening, ladder.update_s)
    if outcome == "applied" and not ladder.screen.challenges(item.plan):
        try:
            ladder.screen.stand_by(item.plan)
        except TrialError as error:
            return "failed", f"{error.kind.replace('_', ' ')} when it was started again: {error}"
    return outcome, reason
