"""Gather what the page of a run shows: windows, alerts, reports, incidents and the record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from time import time
from typing import Any

from hasten.cli.runs_tables import facts
from hasten.monitor.alerts.deliver import read_alerts
from hasten.monitor.alerts.engine import Alert, episodes
from hasten.monitor.alerts.judge import EVENTS, step_s
from hasten.monitor.metric import LOSS, PHASE_PREFIX, SAMPLES, STEP_TIME
from hasten.monitor.window import Window
from hasten.monitor.windows_file import read_windows, windows_files
from hasten.report.runs import RunFacts, Track
from hasten.train.checkpoints.folder import CheckpointFolder
from hasten.train.records.reports import count_incidents, finite, read_incidents, read_reports
from hasten.train.records.runs import Run, open_run, summary

NO_WINDOWS = (
    "The run has no windows (windows.jsonl): it was made by an older version of Hasten, or ended before the first one. The "
    "plots show the reports of metrics.jsonl instead, whose step times include validation and checkpoints."
)
_NO_RECORD = "The run has no record (run.toml): it was a script, or was made by an older version of Hasten."
_EVENTS = tuple(PHASE_PREFIX + name for name in EVENTS)


def open_any(path: Path) -> Run:
    """Open a run that `hasten run` made, also that of a script, which has windows but no record.

    Raises:
        DataError: The folder contains neither, or its record cannot be read.
    """
    if not (path / "run.toml").is_file() and windows_files(path):
        return Run(path=path, record={}, state="unknown")
    return open_run(path)


def page_of(run: Run, reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what `hasten runs show` says of a run, as plain data."""
    return {
        **summary(run, now_s=time()),
        "record": dict(run.record),
        "plan": dict(run.plan),
        "last": reports[-1] if reports else {},
        "phases": next((row["phases"] for row in reversed(reports) if row.get("phases")), {}),
        "held_out_by_epoch": [
            {key: row[key] for key in ("update", "epoch", "held_out")} for row in reports if row.get("held_out")
        ],
        "incidents": count_incidents(run.path),
        "checkpoints": CheckpointFolder(run.path).describe(),
    }


def gather(run: Run, name: str | None = None) -> RunFacts:
    """Return what the page shows of a run. Lines that cannot be read are left out.

    `name`: what the page calls it instead of the name of its folder.

    Raises:
        DataError: A file was written by a newer version of Hasten.
    """
    reports = read_reports(run.path)
    name = name or run.path.resolve().name
    by_rank = [windows for path in windows_files(run.path) if (windows := read_windows(path))]
    tracks = [_track(name, windows, several=len(by_rank) > 1) for windows in by_rank]
    notes = [] if run.record else [_NO_RECORD]
    if not tracks:
        notes.append(NO_WINDOWS)
        tracks = [Track(name=name, rank=0, begin=0, rows=list(_rows(reports)))]
    page = page_of(run, reports)
    return RunFacts(
        name=name,
        state=page["how"] or run.state,
        tracks=tracks,
        facts=dict(facts(page)),
        plan=run.plan,
        proved=run.proved,
        held_out=[
            (row["update"], {key: found for key, value in row["held_out"].items() if (found := finite(value)) is not None})
            for row in page["held_out_by_epoch"]
        ],
        alerts=alert_spans(read_alerts(run.path)),
        incidents=read_incidents(run.path),
        units={key: unit for windows in by_rank for key, unit in windows[-1].start.units.items()},
        notes=notes,
    )


def alert_spans(alerts: Sequence[Alert]) -> list[dict[str, Any]]:
    """Return each alert that fired, with the steps from its first bad window to its end; None while it fires."""
    return [
        {
            "rule": alert.rule, "rank": alert.rank, "from_step": alert.since_step, "to_step": end,
            "words": alert.words, "cause": alert.cause, "next": alert.next,
        }
        for alert, end in episodes(alerts)
    ]  # fmt: skip


def _track(name: str, windows: Sequence[Window], *, several: bool) -> Track:
    rank = windows[0].start.rank
    rows = [(window.to_step, _row(window)) for window in windows]
    return Track(name=f"{name} rank {rank}" if several else name, rank=rank, begin=windows[0].from_step, rows=rows)


def _row(window: Window) -> dict[str, float]:
    """Return the metrics of a window. The time of a step is without the work between steps; without steps there is none."""
    step, shown = step_s(window), window.metrics()
    if step is None:
        return {name: value for name, value in shown.items() if name not in (STEP_TIME.name, SAMPLES.name)}
    return {**{name: value for name, value in shown.items() if name not in _EVENTS}, STEP_TIME.name: step}


def _rows(reports: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield reports as if they were windows, for runs without windows."""
    kept: list[Mapping[str, Any]] = []
    for report in reports:
        if (update := finite(report["update"])) is not None:
            while kept and kept[-1]["update"] >= update:  # a resumed run repeats updates
                kept.pop()
            kept.append(report)
    before: Mapping[str, Any] = {"update": 0, "seconds": 0.0}
    for report in kept:
        steps = report["update"] - before["update"]
        spent, earlier = finite(report.get("seconds")), finite(before.get("seconds"))
        step = None if spent is None or earlier is None or not steps else max(spent - earlier, 0.0) / steps
        row = {
            LOSS.name: finite(report.get("loss")),
            SAMPLES.name: finite(report.get("samples_per_s")),
            STEP_TIME.name: step,
            "process.memory.resident": finite(report.get("memory_bytes")),
            "torch.memory.peak": finite(report.get("device_bytes")),
        }
        if step is not None:
            row |= {f"{PHASE_PREFIX}{name}": finite(share * step) for name, share in report.get("phases", {}).items()}
        yield report["update"], {name: value for name, value in row.items() if value is not None}
        before = report
