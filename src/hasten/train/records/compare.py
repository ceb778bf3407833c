"""Compare runs: their differences, held-out results at the same updates, and the time each took to reach the same loss.

The comparison describes these runs but proves nothing, because two runs of the same plan also differ. A proof needs paired
trials.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from hasten.train.records.reports import finite, read_reports, speed
from hasten.train.records.runs import Run

Reports = Sequence[Mapping[str, Any]]

SINGLE_RUNS = (
    "These are single runs, and two runs of the same plan also differ, so this does not prove that a plan is faster or "
    "better. Paired trials can: `hasten compare TARGET --plan A --plan B` compares plans, `hasten tune TARGET` finds and "
    "proves one."
)
_SMOOTHED = 5
"""Number of reports over which training losses are averaged."""
_FEW = 4
"""Minimum number of reports for excluding the first one, with its warm-up, from the speed."""


def compare_runs(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the comparison as plain data. Lists are in the order of the runs, with None for missing values."""
    reports = [read_reports(run.path) for run in runs]
    facts = [facts_of(run) for run in runs]
    last = [rows[-1] if rows else {} for rows in reports]
    return {
        "runs": [str(run.path) for run in runs],
        "states": [run.state for run in runs],
        "updates": [row.get("update") for row in last],
        "differences": differences(facts),
        "held_out": held_out_at_same_updates(reports),
        "speed": {
            "training_samples_per_s": [training_speed(rows) for rows in reports],
            "whole_samples_per_s": [speed(row) for row in last],
            "seconds": [finite(row.get("seconds")) for row in last],
        },
        "to_same_loss": to_same_loss(reports),
        "warnings": [SINGLE_RUNS, *warnings(runs, facts)],
    }


def facts_of(run: Run) -> dict[str, str]:
    """Return the facts that determine a run, by name, as text. Facts missing in its record are omitted."""
    part = run.last
    facts: dict[str, Any] = {
        "target": run.record.get("target"),
        **{name: part.get(name) for name in ("planned", "seed", "batch_size", "ranks")},
    }
    for name, settings in run.plan.items():
        text = (
            ", ".join(f"{key}={value}" for key, value in settings.items())
            if isinstance(settings, Mapping)
            else str(settings)
        )
        facts[f"plan: {name}"] = text or "applied"
    facts |= {"machine": part.get("machine"), "machine fingerprint": part.get("machine_fingerprint")}
    facts |= {f"version of {name}": value for name, value in part.get("versions", {}).items()}
    repository = part.get("repository", {})
    if commit := repository.get("commit"):
        facts["commit"] = f"{commit} with changes" if repository.get("changed") else commit
    facts |= {"code of the job": part.get("code"), "data": part.get("data")}
    return {name: f"{value}" for name, value in facts.items() if value not in (None, "")}


def differences(facts: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
    """Return the facts that differ: `what`, with its `values`; None for a run that lacks it."""
    names = dict.fromkeys(name for row in facts for name in row)
    rows = [{"what": name, "values": [row.get(name) for row in facts]} for name in names]
    return [row for row in rows if len(set(row["values"])) > 1]


def held_out_at_same_updates(reports: Sequence[Reports]) -> list[dict[str, Any]]:
    """Return `update` and `values` (the metrics of each run) for each update at which all runs were measured."""
    by_update = [{row["update"]: row["held_out"] for row in rows if row.get("held_out")} for rows in reports]
    shared = set(by_update[0]).intersection(*by_update[1:]) if by_update else set()
    return [{"update": update, "values": [metrics[update] for metrics in by_update]} for update in sorted(shared)]


def training_speed(reports: Reports) -> float | None:
    """Return the median of the reported samples per second, without the reports that include a validation pass."""
    speeds = [
        value for row in reports if not row.get("held_out") and (value := finite(row.get("samples_per_s"))) is not None
    ]
    if len(speeds) >= _FEW:
        speeds = speeds[1:]
    return median(speeds) if speeds else None


def to_same_loss(reports: Sequence[Reports]) -> dict[str, Any] | None:
    """Return when each run reached the lowest loss that all runs reached: `loss`, `kind`, `seconds` and `updates`.

    Uses the held-out loss if all runs have one, otherwise the smoothed training loss. Returns None if a run has neither, or
    no times.
    """
    for kind, curve in (("held-out loss", _held_out_losses), ("training loss", _training_losses)):
        curves = [curve(rows) for rows in reports]
        if all(curves):
            loss = max(min(value for _, _, value in points) for points in curves)
            first = [next(point for point in points if point[2] <= loss) for points in curves]
            seconds, updates = [point[0] for point in first], [point[1] for point in first]
            return {"loss": loss, "kind": kind, "seconds": seconds, "updates": updates}
    return None


def warnings(runs: Sequence[Run], facts: Sequence[Mapping[str, str]]) -> list[str]:
    """Return warnings about the comparison, as sentences."""
    result = []
    for name, warning in (
        ("machine fingerprint", "The machines differ, so their speeds say little about the plans."),
        ("target", "The jobs differ, so their losses cannot be compared."),
        ("code of the job", "The code of the job differs."),
        ("data", "The data differ, so their losses cannot be compared."),
        ("seed", "The seeds differ, so some of the difference in the losses is chance."),
    ):
        if len({row.get(name) for row in facts if name in row}) > 1:
            result.append(warning)
    if any("with changes" in row.get("commit", "") for row in facts):
        result.append("Files had uncommitted changes, so the commit does not fully describe the code.")
    for run in runs:
        if len({part.get("machine_fingerprint") for part in run.parts}) > 1:
            result.append(f"{run.path} was trained on more than one machine.")
        if run.state == "running":
            result.append(f"{run.path} is still running.")
        if not run.record:
            result.append(f"{run.path} has no record (run.toml), because an older version wrote it. Some facts are missing.")
    return result


def _held_out_losses(reports: Reports) -> list[tuple[float, int, float]]:
    return [
        (seconds, row["update"], loss)
        for row in reports
        if (loss := finite(row.get("held_out", {}).get("loss"))) is not None and (seconds := finite(row.get("seconds")))
    ]


def _training_losses(reports: Reports) -> list[tuple[float, int, float]]:
    points: list[tuple[float, int, float]] = []
    window: list[float] = []
    for row in reports:
        loss, seconds = finite(row.get("loss")), finite(row.get("seconds"))
        if loss is not None and seconds:
            window = [*window[1 - _SMOOTHED :], loss]
            points.append((seconds, row["update"], sum(window) / len(window)))
    return points
