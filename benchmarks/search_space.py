"""Declare the candidates of an exhaustive search before any is measured, and list all their subsets.

With every fitting technique there would be thousands of subsets. The reduction is a rule based only on the facts of the
plain job and on the plan of an earlier, recorded tuning. That plan's techniques are all included. The others follow by the
logarithm of their ceiling times their prior, each only if at most `MAX_SUBSETS` subsets and at most `MAX_SECONDS` of
measuring remain. A technique that compiles would double the subsets, and each new one would cost a minute.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hasten.core.card import Card, Judge
from hasten.core.facts import Facts
from hasten.core.optimization import Optimization, clash

MAX_SUBSETS = 256
"""Limit of subsets. Every further candidate doubles them, and costs the ladder one more trial."""
MAX_SECONDS = 2400.0
"""Time limit of the exhaustive search, estimated as `SUBSET_S` per subset plus the declared set-up of its techniques."""
SUBSET_S = 9.0

Kind = type[Optimization]
Settings = tuple[Optimization, ...]


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A technique that fits the plain job.

    Attributes:
        name: The technique.
        settings: All settings that it offers to try.
        score: Logarithm of its ceiling times its prior.
        recorded: Whether it is in the recorded tuning's plan.
    """

    name: str
    settings: Settings
    score: float
    recorded: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        offered = [item.settings() for item in self.settings]
        return {"name": self.name, "settings": offered, "score": self.score, "recorded": self.recorded}


@dataclass(frozen=True, kw_only=True)
class Space:
    """The declared and the omitted candidates: together all that fit and could shorten an update."""

    chosen: tuple[Candidate, ...]
    left_out: tuple[Candidate, ...]

    @property
    def most_subsets_of_all(self) -> int:
        """The number of subsets without the reduction, ignoring mutual exclusions."""
        return math.prod(1 + len(item.settings) for item in (*self.chosen, *self.left_out)) - 1

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        chosen, left_out = ([item.to_dict() for item in some] for some in (self.chosen, self.left_out))
        return {"chosen": chosen, "left_out": left_out, "most_subsets_of_all": self.most_subsets_of_all}


def declare(
    facts: Facts, kinds: Mapping[str, Kind], kept: Mapping[str, Mapping[str, Any]], *, limit: int = MAX_SUBSETS
) -> Space:
    """Choose the candidates of both searches.

    Args:
        facts: Facts of the plain job.
        kinds: The catalogue.
        kept: The plan of a recorded tuning, name -> settings.
        limit: Limit of subsets. The recorded plan is included regardless of this and `MAX_SECONDS`.
    """
    found = sorted(_fitting(facts, kinds, kept), key=lambda item: (not item.recorded, -item.score, item.name))
    chosen = [item for item in found if item.recorded]
    for item in found[len(chosen) :]:
        plans = subsets([other.settings for other in (*chosen, item)])
        if len(plans) <= limit and declared_seconds(plans) <= MAX_SECONDS:
            chosen.append(item)
    return Space(chosen=tuple(chosen), left_out=tuple(item for item in found if item not in chosen))


def declared_seconds(plans: Sequence[Settings]) -> float:
    """Estimate the time to measure these plans from the declarations of their techniques."""
    return sum(SUBSET_S + sum(item.card.setup_s for item in plan) for plan in plans)


def subsets(offers: Sequence[Settings]) -> list[Settings]:
    """Return all plans except the empty one: at most one setting per technique, and no two that exclude each other."""
    rows = itertools.product(*((None, *some) for some in offers))
    chosen = (tuple(item for item in row if item is not None) for row in rows)
    return [plan for plan in chosen if plan and not any(clash(*pair) for pair in itertools.combinations(plan, 2))]


def _fitting(facts: Facts, kinds: Mapping[str, Kind], kept: Mapping[str, Mapping[str, Any]]) -> list[Candidate]:
    found = []
    for name, kind in kinds.items():
        if not _is_judged_by_updates(kind.card):
            continue
        fit = kind.fit(facts)
        before = kind(**kept[name]) if name in kept else None
        score = math.log(fit.max_gain) * kind.card.prior
        if before is None and (not fit.fits or score <= 0.0):
            continue
        settings = fit.settings if before is None or before in fit.settings else (*fit.settings, before)
        found.append(Candidate(name=name, settings=settings, score=score, recorded=before is not None))
    return found


def _is_judged_by_updates(card: Card) -> bool:
    """Return whether screening updates can measure the gain: not memory, not events around updates, not learning."""
    return card.judged_by is Judge.UPDATE_TIME and not card.event and not card.memory_technique
