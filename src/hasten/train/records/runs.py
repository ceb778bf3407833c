"""Find runs in folders, and read their state, outcome and reports, also while they are active."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TypeAlias

from hasten.core.errors import DataError
from hasten.train.checkpoints.folder import CHECKPOINTS, LATEST
from hasten.train.periodic import METRICS, WEIGHTS
from hasten.train.records.lock import is_running
from hasten.train.records.log import LOG
from hasten.train.records.record import PLAN, RECORD, ended_words, read_record
from hasten.train.records.reports import finite, skim_reports, speed

WINDOWS = "windows.jsonl"
"""The metrics of a run (`hasten.monitor.windows_file`): all that the run of a followed loop leaves."""
State: TypeAlias = Literal["running", "finished", "stopped", "killed", "failed", "unknown", "unreadable"]
"""`unknown`: not running, and there is no record; `unreadable`: there is a record, but it cannot be read."""

DEPTH = 6
"""Number of folder levels that are searched for runs."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run in its folder.

    Attributes:
        path: The folder.
        record: The contents of `run.toml`; empty if there is none.
        state: The state of the run.
    """

    path: Path
    record: Mapping[str, Any]
    state: State

    @property
    def parts(self) -> list[Mapping[str, Any]]:
        """Its starts, the newest last; empty without a record."""
        return list(self.record.get("parts", []))

    @property
    def last(self) -> Mapping[str, Any]:
        """Its newest part; empty without a record."""
        return self.parts[-1] if self.parts else {}

    @property
    def plan(self) -> Mapping[str, Any]:
        """The optimizations it trained under: name -> settings; empty if the file cannot be read."""
        return self._of_plan("optimizations")

    @property
    def proved(self) -> Mapping[str, Any]:
        """What its plan says about its proof; empty if the file cannot be read."""
        return self._of_plan("proved")

    def _of_plan(self, key: str) -> Mapping[str, Any]:
        try:
            table = tomllib.loads((self.path / PLAN).read_text(encoding="utf-8")).get(key, {})
        except (OSError, ValueError):
            return {}
        return table if isinstance(table, Mapping) else {}


def open_run(path: Path) -> Run:
    """Open the run in a folder.

    Raises:
        DataError: The folder does not exist, contains no run, or its record cannot be read.
    """
    if not path.is_dir():
        raise DataError(f"The folder {path} does not exist. `hasten runs list FOLDER` finds the runs below a folder.")
    if not _is_run(path):
        raise DataError(
            f"{path} is not a run: it has neither {RECORD} nor {METRICS}. `hasten runs list {path}` finds the runs below it."
        )
    record = read_record(path)
    return Run(path=path, record=record, state=state_of(record, running=is_running(path)))


def open_all(folder: Path) -> list[Run]:
    """Open all runs in a folder and below, the most recently active first. Runs with a broken record are `unreadable`.

    Raises:
        DataError: The folder does not exist, or contains no run.
    """
    runs = []
    for path in find_runs(folder):
        try:
            runs.append(open_run(path))
        except DataError:  # `hasten runs show` shows the error
            runs.append(Run(path=path, record={}, state="unreadable"))
    if not runs:
        raise DataError(f"{folder} contains no runs. Start one with `hasten run TARGET --out {folder / 'NAME'}`.")
    return runs


def state_of(record: Mapping[str, Any], *, running: bool) -> State:
    """Return the state of a run: the outcome of its last part, or a state that depends on whether it is running."""
    parts = record.get("parts", [])
    outcome = parts[-1].get("outcome") if parts else None
    if outcome in ("finished", "stopped", "failed"):
        state: State = outcome
        return state
    if running:
        return "running"
    return "killed" if parts else "unknown"


def find_runs(folder: Path) -> list[Path]:
    """Return the folders of all runs in a folder and below, the most recently active first. Links are not followed.

    Raises:
        DataError: The folder does not exist.
    """
    if not folder.is_dir():
        raise DataError(f"The folder {folder} does not exist.")
    runs = []
    for place, folders, _ in os.walk(folder):
        path = Path(place)
        if _is_run(path):
            runs.append(path)
        deep = len(path.relative_to(folder).parts) >= DEPTH
        folders[:] = [] if deep else [name for name in folders if name != CHECKPOINTS and not name.startswith((".", "__"))]
    return sorted(runs, key=last_active, reverse=True)


def last_active(run: Path) -> float:
    """Return when a run was last active, in seconds since 1970."""
    files = (RECORD, METRICS, WINDOWS, LOG, WEIGHTS, f"{CHECKPOINTS}/{LATEST}")
    return max((_changed(run / name) for name in files), default=0.0)


def summary(run: Run, *, now_s: float) -> dict[str, Any]:
    """Return the state of a run as plain data, with None for unknown values.

    Args:
        run: The run.
        now_s: The current time, in seconds since 1970.
    """
    last, held_out = skim_reports(run.path)
    part, active = run.last, last_active(run.path)
    newest = held_out[-1] if held_out else {}
    return {
        "run": str(run.path),
        "state": run.state,
        "how": ended_words(part),
        "target": run.record.get("target") or None,
        "plan": list(run.plan),
        "updates": part.get("updates", last.get("update", part.get("from_update"))),
        "planned": part.get("planned", last.get("planned")),
        "loss": finite(last.get("loss")),
        "held_out": {name: finite(value) for name, value in newest.get("held_out", {}).items()},
        "held_out_update": newest.get("update"),
        "samples_per_s": speed(last),
        "seconds": finite(last.get("seconds")),
        "checkpoint_bytes": folder_bytes(run.path / CHECKPOINTS),
        "started": run.parts[0].get("started") if run.parts else None,
        "active": datetime.fromtimestamp(active).astimezone().isoformat(timespec="seconds"),
        "age_s": max(0.0, now_s - active),
    }


def folder_bytes(folder: Path) -> int:
    """Return the total size of all files in a folder in bytes; 0 if it does not exist. Links are not followed."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(place) / name).lstat().st_size
            except OSError:  # the file was removed in the meantime: runs prune their checkpoints
                continue
    return total


def _is_run(path: Path) -> bool:
    if (path / RECORD).is_file() or (path / WINDOWS).is_file():
        return True
    others = (PLAN, WEIGHTS, CHECKPOINTS)
    return (path / METRICS).is_file() and any((path / name).exists() for name in others)


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
