"""The record of a candidate, one technique with its settings, as the search progresses.

The record is `hasten.report.evidence.Candidate`, as in the evidence file. It is frozen: each function here returns an
extended record, and `put` replaces the old record with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hasten.core.errors import TrialError
from hasten.core.optimization import Optimization
from hasten.report.evidence import Candidate, Check, NumericsResult, Outcome
from hasten.tune.proof.compare import Comparison
from hasten.tune.search.screening import Screening

NOT_TRIED = "not tried"
"""Prefix of the reason of a candidate that the budget had no room for."""


def no_time(needed_s: float) -> str:
    """Return the reason of a candidate that the budget did not reach. The terminal lists these candidates together."""
    return f"{NOT_TRIED}: it needs about {needed_s:.0f} s, and the rest of the budget is reserved for the final proof"


def noted(optimization: Optimization, outcome: Outcome, reason: str, predicted: float | None = None) -> Candidate:
    """Return a candidate without measurements. `predicted` is its largest possible gain."""
    return Candidate(
        name=optimization.card.name, settings=optimization.settings(), outcome=outcome, reason=reason,
        predicted_max_gain=predicted,
    )  # fmt: skip


def failed(optimization: Optimization, error: TrialError, predicted: float | None = None) -> Candidate:
    """Return a candidate whose trial failed. If its loss broke and the base's did not, the numerics gate refuses it."""
    if error.kind != "nan":
        return noted(optimization, "failed", f"{failure_words(error)}: {error}", predicted)
    why = f"the loss became NaN or infinite, while it stays finite under the plan without the candidate: {error}"
    numerics = NumericsResult(kind=optimization.numerics, verdict="failed", why=why)
    return replace(noted(optimization, "refused", f"failed the numerics gate: {why}", predicted), numerics=numerics)


def failure_words(error: TrialError) -> str:
    """Return the kind of a failure in words, such as `out of memory`."""
    return error.kind.replace("_", " ")


def with_screening(candidate: Candidate, screening: Screening, update_s: float) -> Candidate:
    """Return the candidate with the result of a screening. `update_s`: seconds of an update without the candidate."""
    changed = replace(
        with_comparison(candidate, screening.comparison, screening.setup_s, update_s),
        evidence=tuple(Check(**check) for check in screening.evidence),
        setup_seconds=screening.setup_s,
    )
    if screening.gate:
        gate, losses = screening.gate, {arm: tuple(curve) for arm, curve in screening.losses.items()}
        numerics = NumericsResult(
            kind=gate.numerics, verdict=gate.verdict, why=gate.why, baseline_losses=losses.get("A"),
            candidate_losses=losses.get("B"),
        )  # fmt: skip
        changed = replace(changed, numerics=numerics)
    if screening.peak_bytes.get("A"):
        changed = replace(changed, memory_ratio=screening.peak_bytes["B"] / screening.peak_bytes["A"])
    return changed


def with_comparison(candidate: Candidate, comparison: Comparison, setup_s: float, update_s: float) -> Candidate:
    """Return the candidate with the decisive comparison: that of its screening, or of the fresh processes after it."""
    measured, interval = comparison.to_evidence(), comparison.interval
    if interval is None:
        return replace(candidate, comparison=None, unused_samples=measured.samples)
    earned_back = break_even_updates(setup_s, update_s, update_s / interval.ratio)
    return replace(candidate, comparison=measured, break_even_updates=earned_back)


def is_about(candidate: Candidate, optimization: Optimization) -> bool:
    """Return whether this candidate is exactly this technique with these settings."""
    return candidate.name == optimization.card.name and candidate.settings == optimization.settings()


def put(candidates: list[Candidate], candidate: Candidate) -> None:
    """Replace the candidate with the same name and settings, or append the candidate."""
    for position, known in enumerate(candidates):
        if (known.name, known.settings) == (candidate.name, candidate.settings):
            candidates[position] = candidate
            return
    candidates.append(candidate)


def names_of(candidates: Iterable[Candidate]) -> set[str]:
    """Return the names of the candidates' techniques."""
    return {candidate.name for candidate in candidates}


def break_even_updates(setup_s: float, base_update_s: float, candidate_update_s: float) -> int | None:
    """Return after how many updates a one-off cost is earned back; None if an update is no faster."""
    saved = base_update_s - candidate_update_s
    if saved <= 0:
        return None
    return max(int(-(-setup_s // saved)), 0)
