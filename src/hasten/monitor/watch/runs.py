"""The runs below some folders, each with its state, its newest windows and its alerts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import time
from typing import Any, TypeVar

from hasten.core.errors import DataError
from hasten.monitor.alerts.deliver import ALERTS, read_alerts
from hasten.monitor.alerts.engine import episodes
from hasten.monitor.window import Window
from hasten.monitor.windows_file import WindowsReader, keep, windows_files
from hasten.train.guards.incidents import INCIDENTS
from hasten.train.periodic import METRICS
from hasten.train.records.lock import is_running
from hasten.train.records.record import PLAN, RECORD, ended_words
from hasten.train.records.reports import finite, read_incidents, skim_reports
from hasten.train.records.runs import Run, find_runs, open_run, state_of

_KEPT = 4096
"""Windows of a rank that are kept in memory; the oldest leave."""
T = TypeVar("T")


@dataclass
class Watched:
    """A rank of a run.

    Attributes:
        name: Its name: the folder as the user gave it, with the rank if it is not 0.
        windows: The windows so far, the newest last.
        error: Why its file cannot be read; empty if it can. The other runs are still shown.
    """

    folder: Path
    name: str
    rank: int
    reader: WindowsReader
    windows: list[Window] = field(default_factory=list)
    error: str = ""
    _read: dict[str, tuple[object, Any]] = field(default_factory=dict)

    def update(self) -> list[Window]:
        """Read the windows that were added, and return them. Those that a resumed run repeats replace the earlier ones."""
        try:
            added = list(self.reader.new())
        except DataError as error:
            self.error = str(error)
            return []
        for window in added:
            keep(self.windows, window)
        del self.windows[:-_KEPT]
        return added

    def read(self, read: Callable[[Path], T], *names: str) -> T:
        """Return what `read` returns for the folder, called again only if one of these files has changed."""
        key, stamp = " ".join(names), [_stamp(self.folder / name) for name in names]
        if key not in self._read or self._read[key][0] != stamp:
            self._read[key] = stamp, read(self.folder)
        value: T = self._read[key][1]
        return value


class Watch:
    """The runs below some folders, also those that start later.

    Raises:
        DataError: A folder does not exist.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        for folder in folders:
            if not folder.is_dir():
                raise DataError(f"The folder {folder} does not exist. Give a run's folder, or one that contains runs.")
        self._folders = folders
        self._ranks: dict[Path, Watched] = {}

    def update(self) -> list[tuple[Watched, list[Window]]]:
        """Look for new runs and read new windows. Return each rank with its new windows."""
        paths = (path for folder in self._folders for run in find_runs(folder) for path in windows_files(run))
        for path in paths:
            if path not in self._ranks:
                self._ranks[path] = _watched(path)
        return [(rank, rank.update()) for rank in self._ranks.values()]

    @property
    def ranks(self) -> list[Watched]:
        """All ranks of all runs."""
        return list(self._ranks.values())


def _watched(path: Path) -> Watched:
    run, rank = path.parent, int(path.stem.partition("-")[2] or 0)
    name = run.name if run.is_absolute() else run.as_posix()
    return Watched(run, f"{name} rank {rank}" if rank else name, rank, WindowsReader(path))


def describe(rank: Watched) -> dict[str, Any]:
    """Return the state of a rank as plain data, for the list of runs. Paths are those that the user gave."""
    record, plan, proved = rank.read(_record, RECORD, PLAN)
    last, held_out = rank.read(skim_reports, METRICS)
    alerts = [alert for alert in rank.read(read_alerts, ALERTS) if alert.rank == rank.rank]
    fired, start, newest = episodes(alerts), rank.reader.start, rank.windows[-1] if rank.windows else None
    stepped = next((window for window in reversed(rank.windows) if window.steps), None)
    step = newest.to_step if newest else 0
    part = record.get("parts", [{}])[-1]
    return {
        "id": rank.name,
        "rank": rank.rank,
        "state": state_of(record, running=is_running(rank.folder)),
        "how": rank.error or ended_words(part),
        "target": record.get("target") or None,
        "plan": plan,
        "planned": part.get("planned", last.get("planned")),
        "held_out": {name: finite(value) for name, value in held_out[-1]["held_out"].items()} if held_out else {},
        "proved": proved,
        "age_s": time() - (newest.at + newest.seconds) if newest else None,
        "step": step,
        "units": dict(start.units) if start else {},
        "values": stepped.metrics() if stepped else {},
        "firing": [alert.to_dict() for alert, end in fired if end is None],
        "spans": [[alert.since_step, step if end is None else end] for alert, end in fired],
        "alerts": [{**alert.to_dict(), "text": alert.text()} for alert in alerts if alert.state != "pending"],
        "incidents": [] if rank.rank else rank.read(read_incidents, INCIDENTS)[-200:],
    }


def _record(folder: Path) -> tuple[Mapping[str, Any], list[str], Mapping[str, Any]]:
    """Return the record of a run, the names of its plan, and what the plan was proved to do."""
    try:
        run = open_run(folder)
    except DataError:  # a record that cannot be read
        run = Run(path=folder, record={}, state="unknown")
    return run.record, list(run.plan), dict(run.proved)


def _stamp(path: Path) -> tuple[int, int] | None:
    """Return the time and the size of a file; None if it does not exist."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
