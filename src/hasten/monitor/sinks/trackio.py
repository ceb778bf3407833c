"""Windows in Trackio's database, which `trackio show` and `hasten watch` draw.

Written straight to the database: `trackio.init` would print, ask the Hugging Face hub for a user name, and end a run that
the script itself has begun.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

from hasten.monitor.sink import SinkCard
from hasten.monitor.window import Start, Window


class Trackio:
    """Writes each window as a row. `TRACKIO_DIR` names the folder of the database.

    Option: `project`.
    """

    card: ClassVar[SinkCard] = SinkCard(
        name="trackio", summary="Trackio's local database: SQLite, no account", module="trackio", extra="watch"
    )

    def __init__(self, start: Start, folder: Path, project: str = "hasten") -> None:
        from trackio import SQLiteStorage

        SQLiteStorage.validate_project_name(project)
        self._storage, self._project = SQLiteStorage, project

    def write(self, window: Window) -> None:
        """Write a row."""
        start, ended = window.start, datetime.fromtimestamp(window.at + window.seconds, UTC)
        began = datetime.fromtimestamp(start.at, UTC)
        self._storage.bulk_log(
            project=self._project,
            run=start.run,
            metrics_list=[{name.replace(".", "/", 1): value for name, value in window.metrics().items()}],
            steps=[window.to_step],
            timestamps=[ended.isoformat()],
            config={"host": start.host, "ranks": start.world, "_Created": began.isoformat(), "_Group": None},
        )

    def close(self) -> None:
        """Do nothing: every row is already written."""
