"""Store rows of a long measurement in its result file as they are measured, so that an interrupted run can continue."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from benchmarks.record import RESULTS, ROOT, provenance, record
from hasten.core.machine import read_machine
from hasten.core.provenance import commit_of

Row = dict[str, Any]

WHERE = ("machine", "machine_fingerprint", "versions")
"""The fields of `benchmarks.record.provenance` that say where something was measured."""
_CHANGED = "+changes"


def measured_commit() -> str:
    """Return the measured commit, with `+changes` if files other than results differ from it or git is unavailable."""
    found = commit_of(ROOT) or f"unknown{_CHANGED}"
    command = ["git", "-C", str(ROOT), "status", "--porcelain", "--", ".", ":(exclude)benchmarks/results"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    clean = done.returncode == 0 and not done.stdout.strip()
    return found.removesuffix(_CHANGED) if clean else found


class Kept:
    """The content of a result file, by default of this machine only: named rows with their parts, and separate parts.

    Args:
        name: Name of the result.
        command: Command that repeats the measurement.
        result: Assembles the whole result from the rows and the separate parts.
        elsewhere: Also keep rows of other machines; each part then records where it was measured.

    Attributes:
        rows: Rows by name; each part of a row records its commit.
        beside: Parts that belong to no row.
    """

    def __init__(
        self, name: str, command: str, result: Callable[[Mapping[str, Row], Row], Row], *, elsewhere: bool = False
    ) -> None:
        self.name, self.command, self._result = name, command, result
        self.path = RESULTS / f"{name}.json"
        self.commit = measured_commit()
        told = provenance() if elsewhere else {}
        self._where = {"where": {key: told[key] for key in WHERE}} if elsewhere else {}
        self.rows: dict[str, Row] = {}
        self.beside: Row = {}
        if not self.path.exists():
            return
        found = json.loads(self.path.read_text(encoding="utf-8"))
        here = found.get("machine_fingerprint") == read_machine().fingerprint()
        if here or elsewhere:
            self.rows = {row["name"]: row for row in found.get("rows", [])}
        if here:
            self.beside = found.get("beside", {})
        if elsewhere:
            for part in (part for row in self.rows.values() for part in row.values() if _is_part(part)):
                part.setdefault("where", {key: found[key] for key in WHERE if key in found})

    def fresh(self, part: Mapping[str, Any] | None) -> bool:
        """Return whether a part was measured at the current commit; never if files were changed."""
        return part is not None and not self.commit.endswith(_CHANGED) and part["commit"] == self.commit

    def put(self, name: str, part: str, found: Row) -> None:
        """Store a part of a row, and write the file."""
        self.rows.setdefault(name, {"name": name})[part] = {**found, "commit": self.commit, **self._where}
        self.save()

    def put_beside(self, part: str, found: Row) -> None:
        """Store a part that belongs to no row, and write the file."""
        self.beside[part] = {**found, "commit": self.commit}
        self.save()

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
