"""Tune the naive forecasting job on a generated atmosphere, as `hasten demo datacube` does.

The proof is fresh processes in turns, and whole runs with several seeds for the held-out error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.tuning import tuned

JOB = "hasten.recipes.datacube.demo:NaiveDrawnWeather"
BUDGET = "12m"
GOAL = 3.0
"""Smallest accepted lower end of the interval."""


def run(_found: Mapping[str, Any]) -> dict[str, Any]:
    """Tune the job.

    Returns:
        The evidence of the tuning, and whether the goals are met.
    """
    evidence = tuned(JOB, BUDGET)
    final = evidence["final"] or {}
    low, quality = final.get("low") or 0.0, (final.get("quality") or {}).get("verdict")
    return {
        "target": JOB,
        "budget": BUDGET,
        "goals": {
            "speed": {"goal": GOAL, "seen": round(low, 2), "reached": low >= GOAL},
            "held-out error": {"goal": "not_worse", "seen": quality, "reached": quality == "not_worse"},
        },
        "evidence": evidence,
    }
