"""Rows of a long measurement, written as they come: a run that was stopped goes on where this very code left it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from benchmarks.record import ROOT
from hasten.core.provenance import commit_of

Row = dict[str, Any]


class Rows:
    """The rows of one measurement, each of a kind. What a changed or unknown checkout had measured is not taken up.

    Args:
        name: Of the measurement; it names the file under `hasten-out/`.
    """

    def __init__(self, name: str) -> None:
        commit = commit_of(ROOT) or "unknown"
        self.path = ROOT / "hasten-out" / f"{name}-{commit}.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if commit == "unknown" or commit.endswith("+changes"):
            self.path.unlink(missing_ok=True)
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
        self._rows: list[Row] = [json.loads(line) for line in lines]

    def of(self, kind: str) -> list[Row]:
        """The rows of a kind, in the order they came."""
        return [row for row in self._rows if row["kind"] == kind]

    def add(self, kind: str, row: Row) -> Row:
        """Keep a row."""
        line = json.dumps({"kind": kind, **row})
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        self._rows.append(json.loads(line))
        return self._rows[-1]

    def once(self, kind: str, make: Callable[[], Row]) -> Row:
        """The only row of a kind; made where it is not there yet."""
        found = self.of(kind)
        return found[0] if found else self.add(kind, make())

    def finish(self) -> None:
        """Remove the file: the next run measures anew."""
        self.path.unlink(missing_ok=True)
