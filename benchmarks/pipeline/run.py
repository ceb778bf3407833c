"""`python -m benchmarks pipeline`: pipelines of stages, part by part, kept without `--again`.

added      seconds that Dagster and the pipeline add to a stage and to a run
parallel   the example's branches side by side and one after another: predicted and real time
readers    readers that load all the time while models are released, rolled back and restored, with kills: no load fails
chaos      100 kills of stages, workers, steps, the engine and the command: the same weights, and no stage run twice
queue      50 queued trainings of 5 owners: waiting times, leases, and a kill of everything in the middle
"""

from __future__ import annotations

from benchmarks import in_parts

PARTS = ("added", "parallel", "readers", "chaos", "queue")


def main(arguments: list[str]) -> None:
    """Run the command."""
    in_parts.main("pipeline", PARTS, __doc__, arguments)
