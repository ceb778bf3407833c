"""The runs below some folders, each with its state, its newest windows and its alerts."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import time
from typing import Any

from hasten.core.errors import DataError
from hasten.monitor.alerts.deliver import read_alerts
from hasten.monitor.alerts.engine import Alert
from hasten.monitor.window import Window
from hasten.monitor.windows_file import WindowsReader, windows_files
from hasten.train.records.reports import read_incidents
from hasten.train.records.runs import DEPTH, Run, open_run, summary

_KEPT = 4096
"""Windows of a rank that are kept in memory; the oldest leave."""


@dataclass
class Watched:
    """A rank of a run.

    Attributes:
        folder: The run's folder.
        name: Its name: the folder as the user gave it, with the rank if it is not 0.
        rank: The rank.
        reader: Reads its windows.
        windows: The windows so far, the newest last.
        error: Why its file cannot be read; empty if it can. The other runs are still shown.
    """

    folder: Path
    name: str
    rank: int
    reader: WindowsReader
    windows: list[Window] = field(default_factory=list)
    error: str = ""

    def update(self) -> list[Window]:
        """Read the windows that were added, and return them. Those that a resumed run repeats replace the earlier ones."""
        try:
            added = list(self.reader.new())
        except DataError as error:
            self.error = str(error)
            return []
        for window in added:
            if self.windows and window.start is not self.windows[-1].start:
                while self.windows and self.windows[-1].to_step > window.start.step:
                    self.windows.pop()
            self.windows.append(window)
        del self.windows[:-_KEPT]
        return added


class Watch:
    """The runs below some folders, also those that start later.

    Args:
        folders: Folders of runs, or folders above them.

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
        for folder in self._folders:
            for run in run_folders(folder):
                for path in windows_files(run):
                    if path not in self._ranks:
                        self._ranks[path] = _watched(run, path)
        return [(rank, rank.update()) for rank in self._ranks.values()]

    @property
    def ranks(self) -> list[Watched]:
        """All ranks of all runs."""
        return list(self._ranks.values())


def run_folders(folder: Path) -> Iterator[Path]:
    """Yield the folders with windows, in this folder and below. Links are not followed."""
    for place, folders, names in os.walk(folder):
        path = Path(place)
        if "windows.jsonl" in names:
            yield path
        deep = len(path.relative_to(folder).parts) >= DEPTH
        folders[:] = [] if deep else sorted(name for name in folders if not name.startswith((".", "__")))


def _watched(run: Path, path: Path) -> Watched:
    rank = int(path.stem.partition("-")[2] or 0)
    name = run.as_posix() if not run.is_absolute() else run.name
    return Watched(run, f"{name} rank {rank}" if rank else name, rank, WindowsReader(path))


def describe(rank: Watched) -> dict[str, Any]:
    """Return the state of a rank as plain data, for the list of runs. Paths are those that the user gave."""
    run = _open(rank.folder)
    told = summary(run, now_s=time())
    newest = next((window for window in reversed(rank.windows) if window.steps), None)
    start = rank.reader.start
    alerts = [alert for alert in read_alerts(rank.folder) if alert.rank == rank.rank]
    return {
        "id": rank.name,
        "run": rank.name.partition(" rank ")[0],
        "rank": rank.rank,
        "world": start.world if start else 1,
        "host": start.host if start else "",
        "state": told["state"],
        "how": rank.error or told["how"],
        "target": told["target"],
        "plan": told["plan"],
        "planned": told["planned"],
        "held_out": told["held_out"],
        "proved": dict(run.proved),
        "age_s": time() - (rank.windows[-1].at + rank.windows[-1].seconds) if rank.windows else None,
        "step": rank.windows[-1].to_step if rank.windows else 0,
        "units": dict(start.units) if start else {},
        "values": newest.metrics() if newest else {},
        "firing": [alert.to_dict() for alert in firing(alerts)],
        "alerts": [{**alert.to_dict(), "text": alert.text()} for alert in alerts[-200:] if alert.state != "pending"],
        "incidents": read_incidents(rank.folder)[-200:] if not rank.rank else [],
    }


def firing(alerts: Sequence[Alert]) -> list[Alert]:
    """Return the alerts that still fire."""
    last: dict[str, Alert] = {alert.rule: alert for alert in alerts}
    return [alert for alert in last.values() if alert.state == "firing"]


def _open(folder: Path) -> Run:
    try:
        return open_run(folder)
    except DataError:  # the run of a script has windows, but no record
        return Run(path=folder, record=_NO_RECORD, state="unknown")


_NO_RECORD: Mapping[str, Any] = {}
