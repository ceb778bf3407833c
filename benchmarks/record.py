"""Write a result with its provenance: machine, versions, commit, time."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hasten.core.machine import read_machine
from hasten.core.provenance import commit_of, versions
from hasten.report.evidence import write_json

RESULTS = Path(__file__).parent / "results"
ROOT = Path(__file__).parents[1]
CHANGED = "+changes"
"""Follows the commit of a changed checkout."""


def record(name: str, result: dict[str, Any], command: str) -> Path:
    """Write `result` to benchmarks/results/NAME.json and return the path."""
    path = RESULTS / f"{name}.json"
    head = {"name": name, "command": command, **provenance()}
    write_json(without_paths({**head, **result}), path)
    return path


def record_parts(
    name: str,
    parts: Sequence[str],
    measure: Callable[[str, dict[str, Any]], Mapping[str, Any]],
    summary: Callable[[dict[str, Any]], Mapping[str, Any]],
    *,
    again: bool = False,
) -> Path:
    """Measure the requested parts of a benchmark that are missing. Each is recorded when it is done.

    Args:
        name: Name of the benchmark.
        parts: Names of the parts.
        measure: Measures a part, given its name and the parts measured so far.
        summary: Returns what stands above the parts.
        again: Repeat existing parts.
    """
    path = RESULTS / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["parts"] if path.exists() else {}
    for part in parts:
        if part in found and not again:
            print(f"{part} exists", flush=True)
            continue
        print(f"measuring {part}", flush=True)
        found[part] = {**measure(part, found), "where": provenance()}
        path = record(name, {**summary(found), "parts": found}, f"python -m benchmarks {name}")
    return path


def measured_commit() -> str:
    """Return the measured commit, with `+changes` if files other than results differ from it or git is unavailable."""
    found = commit_of(ROOT) or f"unknown{CHANGED}"
    command = ["git", "-C", str(ROOT), "status", "--porcelain", "--", ".", ":(exclude)benchmarks/results"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    clean = done.returncode == 0 and not done.stdout.strip()
    return found.removesuffix(CHANGED) if clean else found


def provenance() -> dict[str, Any]:
    """Return machine, versions, commit and time of a measurement."""
    machine = read_machine()
    return {
        "machine": machine.summary(),
        "machine_fingerprint": machine.fingerprint(),
        "versions": versions(),
        "commit": measured_commit(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def without_paths(value: Any) -> Any:
    """Replace the folders of this checkout and this Python with placeholders: they only describe one machine."""
    if isinstance(value, str):
        for folder, name in ((Path(sys.prefix), "<environment>"), (ROOT, "."), (Path.home(), "~")):
            for path in (folder, folder.resolve()):  # the environment may be a link
                value = value.replace(f"{path}/", f"{name}/")
        return value
    if isinstance(value, Mapping):
        return {key: without_paths(item) for key, item in value.items()}
    return [without_paths(item) for item in value] if isinstance(value, list | tuple) else value
