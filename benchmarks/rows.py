"""Store rows of a long measurement as they are produced, so that an interrupted run of the same code can continue."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from benchmarks.record import CHANGED, ROOT, measured_commit

Row = dict[str, Any]


class Rows:
    """The rows of one measurement, by kind. Rows measured by a changed or unknown checkout are not reused.

    Args:
        name: Name of the measurement, used for the file under `hasten-out/`.
    """

    def __init__(self, name: str) -> None:
        commit = measured_commit()
        self.path = ROOT / "hasten-out" / f"{name}-{commit}.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if commit.endswith(CHANGED):
            self.path.unlink(missing_ok=True)
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
        self._rows: list[Row] = [json.loads(line) for line in lines]

    def of(self, kind: str) -> list[Row]:
        """Return the rows of a kind in the order they were added."""
        return [row for row in self._rows if row["kind"] == kind]

    def add(self, kind: str, row: Row) -> Row:
        """Store a row."""
        line = json.dumps({"kind": kind, **row})
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        self._rows.append(json.loads(line))
        return self._rows[-1]

    def once(self, kind: str, make: Callable[[], Row]) -> Row:
        """Return the only row of a kind, and create it if it is missing."""
        found = self.of(kind)
        return found[0] if found else self.add(kind, make())

    def finish(self) -> None:
        """Remove the file, so that the next run starts from scratch."""
        self.path.unlink(missing_ok=True)
