"""The reports of a run as Parquet, for notebooks and databases."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hasten.core.errors import DataError, MachineError
from hasten.core.files import write_atomically

_TABLES = ("held_out", "phases")
"""What a report holds by name; each name becomes a column of its own."""


def export_reports(reports: Sequence[Mapping[str, Any]], path: Path) -> int:
    """Write a row for each report; how many there are.

    Args:
        reports: As `read_reports` gives them.
        path: `FILE.parquet`.

    Raises:
        DataError: There are no reports, or the file is named otherwise.
        MachineError: pyarrow is missing, or the file cannot be written.
    """
    if path.suffix != ".parquet":
        raise DataError(f"{path} must end in .parquet: that is what is written.")
    if not reports:
        raise DataError("The run has reported nothing yet: there is nothing to write.")
    try:
        import pyarrow as pa  # noqa: PLC0415  it may be missing where Hasten was installed without its dependencies
        from pyarrow import parquet  # noqa: PLC0415
    except ImportError as error:
        raise MachineError(
            f"Parquet needs pyarrow, which cannot be imported ({error}): pip install pyarrow. metrics.jsonl holds the same."
        ) from error
    rows = [flat(report) for report in reports]
    names = dict.fromkeys(name for row in rows for name in row)
    file = io.BytesIO()
    parquet.write_table(pa.table({name: [row.get(name) for row in rows] for name in names}), file)
    try:
        write_atomically(path, file.getvalue())
    except OSError as error:
        raise MachineError(f"{path} cannot be written ({error.strerror}): choose another place.") from error
    return len(rows)


def flat(report: Mapping[str, Any]) -> dict[str, Any]:
    """A report without tables inside: `held_out.loss` is a name of its own."""
    found = {name: value for name, value in report.items() if name not in _TABLES}
    for table in _TABLES:
        found |= {f"{table}.{name}": value for name, value in report.get(table, {}).items()}
    return found
