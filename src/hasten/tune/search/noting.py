"""What is written on a rung: what a screening gave, and why a candidate was never tried."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hasten.core.card import Judge
from hasten.core.optimization import Optimization
from hasten.tune.objective import Goal
from hasten.tune.search.candidate import Candidate, Outcome, break_even_updates
from hasten.tune.search.screening import Screen, Screening

if TYPE_CHECKING:
    from hasten.tune.search.search import Ladder

NOT_TRIED = "not tried"
"""Begins the reason of a candidate that the budget had no room for."""


def no_time(needed_s: float) -> str:
    """Why a candidate was not tried whose turn the budget did not reach; the terminal lists these together."""
    return f"{NOT_TRIED}: it needs about {needed_s:.0f} s and the budget must keep enough for the final proof"


def fill(rung: Candidate, screening: Screening, screen: Screen, update_s: float) -> None:
    """Put what a screening gave into its rung; `update_s`: seconds of an update without it."""
    rung.evidence = screening.evidence
    rung.setup_seconds = screening.setup_s
    fill_times(rung, screening, update_s)
    if screening.gate:
        gate = screening.gate
        rung.numerics = {"class": str(gate.numerics), "verdict": gate.verdict, "why": gate.why}
        if screen.challenger is not None:
            rung.numerics["baseline_losses"] = list(screen.base.losses)
            rung.numerics["candidate_losses"] = list(screen.challenger.losses)
    if screening.peak_bytes.get("A"):
        rung.memory_ratio = screening.peak_bytes["B"] / screening.peak_bytes["A"]


def fill_times(rung: Candidate, screening: Screening, update_s: float) -> None:
    """Put the comparison of a screening into its rung, or that of the fresh processes that took its place."""
    interval = screening.comparison.interval
    rung.comparison = screening.comparison.to_dict() if interval else None
    if interval is None:
        rung.unused_samples = [sample.to_dict() for sample in screening.comparison.samples]
    else:
        rung.break_even_updates = break_even_updates(screening.setup_s, update_s, update_s / interval.ratio)


def rung_of(optimization: Optimization, outcome: Outcome, reason: str, predicted: float | None = None) -> Candidate:
    """A rung, without what was measured; `predicted`: the most it could bring."""
    return Candidate(
        name=optimization.card.name, settings=optimization.settings(), outcome=outcome, reason=reason,
        predicted_max_gain=predicted,
    )  # fmt: skip


def note_unfit(ladder: Ladder) -> None:
    """Every candidate that was never tried is a rung too, with the reason of the last look."""
    for name, kind in ladder.catalogue.items():
        if name in ladder.screen.plan.names or any(rung.name == name for rung in ladder.rungs):
            continue
        fit = kind.fit(ladder.facts)
        settings = fit.settings[0].settings() if fit.settings else {}
        reason = fit.reason or _why_blocked(ladder, kind, fit.max_gain, fit.settings)
        bounded = fit.fits and kind.card.judged_by is Judge.UPDATE_TIME
        predicted = fit.max_gain if bounded else None
        ladder.rungs.append(
            Candidate(name=name, settings=settings, outcome="refused", reason=reason, predicted_max_gain=predicted)
        )
    ladder.save()


def _why_blocked(ladder: Ladder, kind: type[Optimization], max_gain: float, settings: tuple[Optimization, ...]) -> str:
    if ladder.objective.goal is Goal.MEMORY and not kind.card.saves_memory:
        return "it lowers no peak memory, which is what is wanted"
    if kind.card.memory_technique:
        peak, limit = ladder.facts.peak_memory_bytes / 2**30, ladder.facts.memory_limit_bytes / 2**30
        return f"it buys memory with time, and memory is not short: {peak:.1f} of {limit:.1f} GiB at the peak"
    if why := next((ladder.clashes(item) for item in settings if ladder.clashes(item)), ""):
        return why
    floor = ladder.screen.floor_frac
    return f"by its measured ceiling it could bring {max_gain:.2f}x at most, and less than {floor:.1%} cannot be told here"
