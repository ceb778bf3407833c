"""Feed the windows of runs into Trackio's database, and keep `runs.json` for the view: what Trackio has no place for.

Trackio reads the folder of its database from `TRACKIO_DIR` when it is imported.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trackio.sqlite_storage import SQLiteStorage

from hasten.core.files import write_atomically
from hasten.monitor.alerts.judge import EVENTS
from hasten.monitor.watch.runs import Watch, Watched, describe
from hasten.monitor.window import Window
from hasten.train.clock import PHASES

PROJECT = "runs"
RUNS = "runs.json"


class Feed:
    """Copies what a watch finds into Trackio. Nothing is written to the runs."""

    def __init__(self, watch: Watch, page: Path) -> None:
        self._watch, self._page = watch, page
        self._alerts: dict[str, int] = {}

    def update(self) -> None:
        """Copy what is new."""
        for rank, windows in self._watch.update():
            if windows:
                _log(rank, windows)
        runs = [describe(rank) for rank in self._watch.ranks]
        for run in runs:
            self._tell(run["id"], run["alerts"])
        told = {"project": PROJECT, "events": EVENTS, "phases": PHASES, "runs": runs}
        text = json.dumps(told, allow_nan=False, default=str)
        write_atomically(self._page / RUNS, text.encode())

    def _tell(self, run: str, alerts: Sequence[dict[str, Any]]) -> None:
        """Give Trackio the alerts that are new."""
        new, self._alerts[run] = alerts[self._alerts.get(run, 0) :], len(alerts)
        if new:
            SQLiteStorage.bulk_alert(
                PROJECT,
                run,
                titles=[f"{alert['rule']} {alert['state']}" for alert in new],
                texts=[alert["text"] for alert in new],
                levels=["warn"] * len(new),
                steps=[alert["step"] for alert in new],
                timestamps=[_time(alert["at"]) for alert in new],
                run_id=run,
            )


def _log(rank: Watched, windows: Sequence[Window]) -> None:
    rows = [(window, window.metrics()) for window in windows]
    SQLiteStorage.bulk_log(
        PROJECT,
        rank.name,
        [{**metrics, "window.seconds": window.seconds} for window, metrics in rows],
        steps=[window.to_step for window, _ in rows],
        timestamps=[_time(window.at + window.seconds) for window, _ in rows],
        config={"run": rank.name, "rank": rank.rank, "host": windows[-1].start.host},
        run_id=rank.name,
    )


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()
