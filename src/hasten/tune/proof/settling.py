"""Say which budget would settle what the held-out metric of a proof left open."""

from __future__ import annotations

import math
from collections.abc import Callable

from hasten.core.stats import LOOKS, NonInferiority, seeds_needed


def what_would_settle(found: NonInferiority, margin: float, *, whole_runs: bool, budget_of: Callable[[int], str]) -> str:
    """What would say more than this proof did, in words that follow its reason.

    Args:
        found: What the proof says of the held-out metric, which is not that it holds.
        margin: Of the metric.
        whole_runs: The proof was one of whole runs; otherwise it looked at the beginning of training only.
        budget_of: The `--budget` that holds so many pairs of whole runs.
    """
    if not whole_runs:
        return f". Whole runs would say more: {budget_of(LOOKS[0])}"
    if found.verdict != "undecided" or not math.isfinite(found.upper) or found.mean_harm >= margin:
        return ""
    seeds = seeds_needed(found, margin)
    if seeds is not None and seeds <= LOOKS[-1]:
        pairs = next(look for look in LOOKS if look >= seeds)
        return f". About {seeds} pairs of whole runs would settle it: {budget_of(pairs)}"
    many = "more than a hundred" if seeds is None else f"about {seeds}"
    return (
        f". Runs of one plan differ so much that {many} pairs would be needed, and a proof takes {LOOKS[-1]} at most: "
        f"a longer training or more held-out data would steady the metric"
    )
