"""Write a result with where it comes from: machine, versions, commit, time."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from upshift.core.machine import read_machine
from upshift.report import evidence
from upshift.tune.provenance import commit_of, versions

RESULTS = Path(__file__).parent / "results"
ROOT = Path(__file__).parents[1]


def record(name: str, result: dict[str, Any], command: str) -> Path:
    """Write `result` to benchmarks/results/NAME.json and say where."""
    path = RESULTS / f"{name}.json"
    machine = read_machine()
    head = {
        "name": name,
        "command": command,
        "machine": machine.summary(),
        "machine_fingerprint": machine.fingerprint(),
        "versions": versions(),
        "commit": commit_of(ROOT),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    evidence.save({**head, **result}, path)
    return path
