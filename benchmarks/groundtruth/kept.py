"""Rows of a long measurement, written into its result file as they come: a run that was stopped goes on where it was."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.record import RESULTS, ROOT, record
from hasten.core.machine import read_machine
from hasten.core.provenance import commit_of

Row = dict[str, Any]

WHERE = ("machine", "machine_fingerprint", "versions")
"""Of what `benchmarks.record.provenance` tells: where something was measured."""
_CHANGED = "+changes"


def measured_commit() -> str:
    """The commit that is measured, with `+changes` where more than result files differ from it, or nobody knows."""
    found = commit_of(ROOT) or f"unknown{_CHANGED}"
    command = ["git", "-C", str(ROOT), "status", "--porcelain", "--", ".", ":(exclude)benchmarks/results"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    clean = done.returncode == 0 and not done.stdout.strip()
    return found.removesuffix(_CHANGED) if clean else found


class Kept:
    """What a result file holds, of this machine unless others are asked for: named rows, each with its parts, and more.

    Args:
        name: Of the result.
        command: That measures it again.
        result: Makes the whole result of the rows and of what stands beside them.
        elsewhere: Keep rows of other machines too; each part then says where it was measured.

    Attributes:
        rows: By name; each part of a row says at which commit it was measured.
        beside: Parts that belong to no row.
    """

    def __init__(
        self, name: str, command: str, result: Callable[[Mapping[str, Row], Row], Row], *, elsewhere: bool = False
    ) -> None:
        self.name, self.command, self._result = name, command, result
        self.path = RESULTS / f"{name}.json"
        self.commit = measured_commit()
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
        """Whether a part was measured at this very commit; of changed files nothing is known, so never there."""
        return part is not None and not self.commit.endswith(_CHANGED) and part["commit"] == self.commit

    def put(self, name: str, part: str, found: Row) -> None:
        """Keep a part of a row, and write the file."""
        self.rows.setdefault(name, {"name": name})[part] = {**found, "commit": self.commit}
        self.save()

    def put_beside(self, part: str, found: Row) -> None:
        """Keep a part that belongs to no row, and write the file."""
        self.beside[part] = {**found, "commit": self.commit}
        self.save()

    def save(self) -> None:
        """Write the file: the score anew, the rows, and what stands beside them."""
        result = self._result(self.rows, self.beside)
        commits = sorted({part["commit"] for row in self.rows.values() for part in row.values() if _is_part(part)})
        record(self.name, {**result, "row_commits": commits, "beside": self.beside}, self.command)


def _is_part(value: object) -> bool:
    return isinstance(value, dict) and "commit" in value
