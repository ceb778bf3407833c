"""Read the reports of a run, during the run or later, and export them as Parquet for notebooks and databases."""

from __future__ import annotations

import io
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hasten.core.errors import DataError, MachineError
from hasten.core.files import write_atomically
from hasten.train.guards.incidents import INCIDENTS
from hasten.train.periodic import METRICS

_TABLES = ("held_out", "phases")
"""Entries of a report that are tables. Each of their values becomes a separate column."""


def read_reports(run: Path) -> list[dict[str, Any]]:
    """Return all reports of a run in order. Skip incomplete lines, which are still being written or were cut by a crash."""
    return [report for line in _lines(run) if (report := _parsed(line)) is not None]


def skim_reports(run: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the last report (empty if there is none) and those with held-out metrics, without parsing all reports."""
    held_out, newest = [], b""
    for line in _lines(run):
        if line.endswith(b"}\n"):
            newest = line
            if b'"held_out": {}' not in line and (report := _parsed(line)) is not None:
                held_out.append(report)
    return _parsed(newest) or {}, held_out


def read_incidents(run: Path) -> list[dict[str, Any]]:
    """Return all incidents of a run in order; empty if there were none."""
    return [incident for line in _lines(run, INCIDENTS) if (incident := _parsed(line)) is not None]


def count_incidents(run: Path) -> dict[str, int]:
    """Return kind -> number of incidents; empty if there were none."""
    return dict(Counter(str(incident.get("kind", "other")) for incident in read_incidents(run)))


def speed(last: Mapping[str, Any]) -> float | None:
    """Return samples per second over the whole run, including validation and checkpoints.

    For runs of older versions, return the value of the last report.
    """
    samples, seconds = finite(last.get("samples")), finite(last.get("seconds"))
    if samples and seconds:
        return samples / seconds
    return finite(last.get("samples_per_s"))


def finite(value: object) -> float | None:
    """Return the value if it is a finite number, otherwise None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


def export_reports(reports: Sequence[Mapping[str, Any]], path: Path) -> int:
    """Write one row per report to a Parquet file, and return the number of rows.

    Args:
        reports: The result of `read_reports`.
        path: `FILE.parquet`.

    Raises:
        DataError: There are no reports, or the file name has another extension.
        MachineError: pyarrow is missing, or the file cannot be written.
    """
    if path.suffix != ".parquet":
        raise DataError(f"{path} must end in .parquet, the only supported format.")
    if not reports:
        raise DataError("The run has no reports yet, so there is nothing to write.")
    try:
        import pyarrow as pa  # noqa: PLC0415  missing if Hasten was installed without its dependencies
        from pyarrow import parquet  # noqa: PLC0415
    except ImportError as error:
        raise MachineError(
            f"Parquet needs pyarrow, which cannot be imported ({error}): pip install pyarrow. metrics.jsonl has the same."
        ) from error
    rows = [flat(report) for report in reports]
    names = dict.fromkeys(name for row in rows for name in row)
    file = io.BytesIO()
    parquet.write_table(pa.table({name: [row.get(name) for row in rows] for name in names}), file)
    try:
        write_atomically(path, file.getvalue())
    except OSError as error:
        raise MachineError(f"{path} cannot be written ({error.strerror}): choose another path.") from error
    return len(rows)


def flat(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return a report without nested tables, with names such as `held_out.loss`."""
    row = {name: value for name, value in report.items() if name not in _TABLES}
    for table in _TABLES:
        row |= {f"{table}.{name}": value for name, value in report.get(table, {}).items()}
    return row


def _lines(run: Path, name: str = METRICS) -> Iterator[bytes]:
    try:
        with (run / name).open("rb") as file:
            yield from file
    except FileNotFoundError:
        return


def _parsed(line: bytes) -> dict[str, Any] | None:
    if not line.endswith(b"\n"):
        return None
    try:
        report = json.loads(line)
    except ValueError:
        return None
    return report if isinstance(report, dict) and "update" in report else None
