"""Write a result with its provenance: machine, versions, commit, time."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hasten.core.machine import read_machine
from hasten.core.provenance import commit_of, versions
from hasten.report.evidence import write_json

RESULTS = Path(__file__).parent / "results"
ROOT = Path(__file__).parents[1]


def record(name: str, result: dict[str, Any], command: str) -> Path:
    """Write `result` to benchmarks/results/NAME.json and return the path."""
    path = RESULTS / f"{name}.json"
    head = {"name": name, "command": command, **provenance()}
    write_json(without_paths({**head, **result}), path)
    return path


def provenance() -> dict[str, Any]:
    """Return machine, versions, commit and time of a measurement."""
    machine = read_machine()
    return {
        "machine": machine.summary(),
        "machine_fingerprint": machine.fingerprint(),
        "versions": versions(),
        "commit": commit_of(ROOT),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def without_paths(value: Any) -> Any:
    """Replace the folders of this checkout and this Python with placeholders: they only describe one machine."""
    if isinstance(value, str):
        for folder, name in ((sys.prefix, "<environment>"), (str(ROOT), "."), (str(Path.home()), "~")):
            value = value.replace(f"{folder}/", f"{name}/")
        return value
    if isinstance(value, Mapping):
        return {key: without_paths(item) for key, item in value.items()}
    return [without_paths(item) for item in value] if isinstance(value, list | tuple) else value
