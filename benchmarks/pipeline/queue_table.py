"""Write the table of the guide from the recorded load test of the queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hasten.report.words import seconds_words

TIMES = {"shortest_s": "shortest wait", "median_s": "median", "longest_s": "longest"}


def table(found: Mapping[str, Any]) -> str:
    """Return how long the runs of each owner waited, and what a kill of everything did."""
    part = found.get("pipeline", {}).get("parts", {}).get("queue")
    if part is None:
        return "The load test was not recorded yet: `python -m benchmarks pipeline --part queue`."
    rows = [
        f"| {owner} | {seen['runs']} | {' | '.join(seconds_words(seen[name]) for name in TIMES)} |"
        for owner, seen in part["owners"].items()
    ]
    words = (
        f"{part['runs']} small trainings on {part['cores']} cores took {seconds_words(part['total_s'])}, with at most "
        f"{part['peak_cores_leased']} cores leased at once. When {part['ended_before_kill']} had ended, all "
        f"{part['killed_processes']} processes were killed with SIGKILL, and the queue was started again: "
        f"{part['complete']} records are complete, and {part['run_again']} trainings that had ended were run again. "
        f"The queue and Dagster add {part['added_s']:.1f} s to a run (median), in which other trainings run."
    )
    head = f"| owner | runs | {' | '.join(TIMES.values())} |"
    return "\n".join([head, "|---" * (2 + len(TIMES)) + "|", *rows, "", f"{words} Measured on {part['where']['machine']}."])
