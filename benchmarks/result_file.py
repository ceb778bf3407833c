"""Store rows of a long measurement in its result file as they are measured, so that an interrupted run can continue."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from benchmarks.record import CHANGED, RESULTS, measured_commit, provenance, record

Row = dict[str, Any]

WHERE = ("machine", "machine_fingerprint", "versions")
"""The fields of `benchmarks.record.provenance` that say where something was measured."""


class ResultFile:
    """The content of a result file: named rows with their parts, and separate parts. Each says where it was measured.

    Args:
        name: Name of the result.
        command: Command that repeats the measurement.
        result: Assembles the whole result from the rows and the separate parts.

    Attributes:
        rows: Rows by name; each part of a row records its commit and its machine.
        beside: Parts that belong to no row.
    """

    def __init__(self, name: str, command: str, result: Callable[[Mapping[str, Row], Row], Row]) -> None:
        self.name, self.command, self._result = name, command, result
        self.path = RESULTS / f"{name}.json"
        self.commit = measured_commit()
        told = provenance()
        self._where = {key: told[key] for key in WHERE}
        self.rows: dict[str, Row] = {}
        self.beside: Row = {}
        if not self.path.exists():
            return
        found = json.loads(self.path.read_text(encoding="utf-8"))
        self.rows = {row["name"]: row for row in found.get("rows", [])}
        self.beside = found.get("beside", {})
        for part in (part for row in (*self.rows.values(), self.beside) for part in row.values() if _is_part(part)):
            part.setdefault("where", {key: found[key] for key in WHERE if key in found})

    def fresh(self, part: Mapping[str, Any] | None) -> bool:
        """Return whether a part was measured on this machine at the current commit; never if files were changed."""
        if part is None or self.commit.endswith(CHANGED) or part["commit"] != self.commit:
            return False
        return bool(part["where"]["machine_fingerprint"] == self._where["machine_fingerprint"])

    def put(self, name: str, part: str, found: Row) -> None:
        """Store a part of a row, and write the file."""
        self.rows.setdefault(name, {"name": name})[part] = self._signed(found)
        self.save()

    def put_beside(self, part: str, found: Row) -> None:
        """Store a part that belongs to no row, and write the file."""
        self.beside[part] = self._signed(found)
        self.save()

    def _signed(self, found: Row) -> Row:
        return {**found, "commit": self.commit, "where": self._where}

    def save(self) -> None:
        """Write the file: the recomputed score, the rows, and the separate parts."""
        result = self._result(self.rows, self.beside)
        commits = sorted({part["commit"] for row in self.rows.values() for part in row.values() if _is_part(part)})
        record(self.name, {**result, "row_commits": commits, "beside": self.beside}, self.command)


def machines(rows: Iterable[Row]) -> str:
    """Name the machines on which the parts of rows were measured; empty if none says so."""
    parts = (part for row in rows for part in row.values() if isinstance(part, dict) and "where" in part)
    return " and on ".join(dict.fromkeys(part["where"]["machine"] for part in parts))


def _is_part(value: object) -> bool:
    return isinstance(value, dict) and "commit" in value
