"""A rung of the ladder: one candidate, and everything that became of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from hasten.core.optimization import Optimization

Outcome = Literal["applied", "refused", "failed", "undecided", "pruned"]


@dataclass(kw_only=True)
class Candidate:
    """One candidate.

    Attributes:
        name: The optimization.
        settings: The settings tried.
        outcome: applied, refused, failed, undecided or pruned.
        reason: Why, in words.
        predicted_max_gain: The most it could bring, as a ratio; None where it did not fit.
        comparison: The paired measurement; None where it did not come to one.
        numerics: The gate's verdict; None likewise.
        evidence: Whether the mechanism fired.
        setup_seconds: What it costs once.
        break_even_updates: After how many updates that is earned back; None where nothing is.
        unused_samples: Samples that came to no interval, a neighbour having spoilt too many.
        memory_ratio: Peak memory with it over peak memory without; None where not measured.
        update_time: The paired measurement of the time of an update, where the comparison is by time to target.
        proof: The final proof, of the whole plan, that took it out again; None for all other rungs.
    """

    name: str
    settings: dict[str, Any]
    outcome: Outcome
    reason: str
    predicted_max_gain: float | None = None
    comparison: dict[str, Any] | None = None
    numerics: dict[str, Any] | None = None
    evidence: list[dict[str, Any]] = field(default_factory=list)
    setup_seconds: float | None = None
    break_even_updates: int | None = None
    memory_ratio: float | None = None
    update_time: dict[str, Any] | None = None
    proof: dict[str, Any] | None = None
    unused_samples: list[dict[str, Any]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """As in the evidence file."""
        return dict(vars(self))

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Candidate:
        """Read back from an evidence file."""
        return cls(**{name: data[name] for name in cls.__dataclass_fields__ if name in data})

    def is_about(self, optimization: Optimization) -> bool:
        """Whether this rung tried exactly that optimization with those settings."""
        return self.name == optimization.card.name and self.settings == optimization.settings()


def break_even_updates(setup_s: float, base_update_s: float, candidate_update_s: float) -> int | None:
    """After how many updates a one-off cost is earned back; None when an update is no faster."""
    saved = base_update_s - candidate_update_s
    if saved <= 0:
        return None
    return max(int(-(-setup_s // saved)), 0)
