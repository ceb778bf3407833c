"""Runs side by side: in what they differ, their held-out results at the same updates, and how fast each came to one loss.

All of it describes these runs, and none of it proves anything: two runs of one plan differ too. Proof takes paired trials.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from hasten.train.records.reports import finite, read_reports, speed
from hasten.train.records.runs import Run

Reports = Sequence[Mapping[str, Any]]

SINGLE_RUNS = (
    "These are single runs, and two runs of one plan differ too: nothing here proves that a plan is faster or better. "
    "Paired trials do: `hasten compare TARGET --plan A --plan B` decides, `hasten tune TARGET` finds a plan and proves it."
)
_SMOOTHED = 5
"""Reports whose training losses are averaged."""
_FEW = 4
"""Reports below which the first one, with its warm-up, is not left out of the speed."""


def compare_runs(runs: Sequence[Run]) -> dict[str, Any]:
    """The comparison as plain data; lists are in the order of the runs, with None for what a run does not tell."""
    reports = [read_reports(run.path) for run in runs]
    facts = [facts_of(run) for run in runs]
    last = [found[-1] if found else {} for found in reports]
    return {
        "runs": [str(run.path) for run in runs],
        "states": [run.state for run in runs],
        "updates": [row.get("update") for row in last],
        "differences": differences(facts),
        "held_out": held_out_at_same_updates(reports),
        "speed": {
            "training_samples_per_s": [training_speed(found) for found in reports],
            "whole_samples_per_s": [speed(row) for row in last],
            "seconds": [finite(row.get("seconds")) for row in last],
        },
        "to_same_loss": to_same_loss(reports),
        "warnings": [SINGLE_RUNS, *warnings(runs, facts)],
    }


def facts_of(run: Run) -> dict[str, str]:
    """What decides a run, by name, in words; without what its record does not tell."""
    part = run.last
    found: dict[str, Any] = {
        "target": run.record.get("target"),
        **{name: part.get(name) for name in ("planned", "seed", "batch_size", "ranks")},
    }
    for name, settings in run.plan.items():
        words = (
            ", ".join(f"{key}={value}" for key, value in settings.items())
            if isinstance(settings, Mapping)
            else str(settings)
        )
        found[f"plan: {name}"] = words or "applied"
    found |= {"machine": part.get("machine"), "machine fingerprint": part.get("machine_fingerprint")}
    found |= {f"version of {name}": value for name, value in part.get("versions", {}).items()}
    repository = part.get("repository", {})
    if commit := repository.get("commit"):
        found["commit"] = f"{commit} with changes" if repository.get("changed") else commit
    found |= {"code of the job": part.get("code"), "data": part.get("data")}
    return {name: f"{value}" for name, value in found.items() if value not in (None, "")}


def differences(facts: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
    """`what` differs, and its `values`; None where a run lacks it."""
    names = dict.fromkeys(name for found in facts for name in found)
    rows = [{"what": name, "values": [found.get(name) for found in facts]} for name in names]
    return [row for row in rows if len(set(row["values"])) > 1]


def held_out_at_same_updates(reports: Sequence[Reports]) -> list[dict[str, Any]]:
    """For each update at which all runs were measured: `update`, and their `values`, a table of metrics each."""
    by_update = [{row["update"]: row["held_out"] for row in found if row.get("held_out")} for found in reports]
    shared = set(by_update[0]).intersection(*by_update[1:]) if by_update else set()
    return [{"update": update, "values": [found[update] for found in by_update]} for update in sorted(shared)]


def training_speed(reports: Reports) -> float | None:
    """The median of the reported samples a second, without the reports that a validation pass came before."""
    speeds = [
        value for row in reports if not row.get("held_out") and (value := finite(row.get("samples_per_s"))) is not None
    ]
    if len(speeds) >= _FEW:
        speeds = speeds[1:]
    return median(speeds) if speeds else None


def to_same_loss(reports: Sequence[Reports]) -> dict[str, Any] | None:
    """Until when each run had come to the lowest loss that all of them reached: `loss`, `kind`, `seconds` and `updates`.

    By the held-out loss where all have one, else by the smoothed training loss; None where a run has neither, or no times.
    """
    for kind, curve in (("held-out loss", _held_out_losses), ("training loss", _training_losses)):
        curves = [curve(found) for found in reports]
        if all(curves):
            loss = max(min(value for _, _, value in points) for points in curves)
            first = [next(point for point in points if point[2] <= loss) for points in curves]
            return {"loss": loss, "kind": kind, "seconds": [at[0] for at in first], "updates": [at[1] for at in first]}
    return None


def warnings(runs: Sequence[Run], facts: Sequence[Mapping[str, str]]) -> list[str]:
    """What else a reader should mind, in sentences."""
    found = []
    for name, words in (
        ("machine fingerprint", "The machines differ, so their speeds say little about the plans."),
        ("target", "The jobs differ, so their losses cannot be compared."),
        ("code of the job", "The code of the job differs."),
        ("data", "The data differ, so their losses cannot be compared."),
        ("seed", "The seeds differ, so some of the difference in the losses is chance."),
    ):
        if len({row.get(name) for row in facts if name in row}) > 1:
            found.append(words)
    if any("with changes" in row.get("commit", "") for row in facts):
        found.append("Files differed from their commit, so the commit does not say all of what ran.")
    for run in runs:
        if len({part.get("machine_fingerprint") for part in run.parts}) > 1:
            found.append(f"{run.path} was trained on more than one machine.")
        if run.state == "running":
            found.append(f"{run.path} is still running.")
        if not run.record:
            found.append(
                f"{run.path} has no record (run.toml): it is of an older version, and what it does not tell is left out."
            )
    return found


def _held_out_losses(reports: Reports) -> list[tuple[float, int, float]]:
    return [
        (seconds, row["update"], loss)
        for row in reports
        if (loss := finite(row.get("held_out", {}).get("loss"))) is not None and (seconds := finite(row.get("seconds")))
    ]


def _training_losses(reports: Reports) -> list[tuple[float, int, float]]:
    found: list[tuple[float, int, float]] = []
    window: list[float] = []
    for row in reports:
        loss, seconds = finite(row.get("loss")), finite(row.get("seconds"))
        if loss is not None and seconds:
            window = [*window[1 - _SMOOTHED :], loss]
            found.append((seconds, row["update"], sum(window) / len(window)))
    return found
