"""Read sources as a conversion does, without writing a store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from hasten.data.convert.contract import Bad, Choices, Note, Reader


def read(reader: type[Reader], path: Path, **chosen: Any) -> tuple[pa.Schema, list[dict[str, Any]], list[Bad]]:
    """Read a source as a conversion does: types, rows and bad records."""
    choices = Choices(**chosen)
    units = reader.units(path, choices)
    schema = reader.schema(units, choices)
    if schema is not None:
        choices = replace(choices, schema=schema.serialize().to_pybytes())
    rows: list[dict[str, Any]] = []
    bad: list[Bad] = []
    for unit in units:
        for part in reader.read(unit, choices):
            if isinstance(part, Bad):
                bad.append(part)
            elif isinstance(part, pa.Table):
                part.validate(full=True)
                rows += part.to_pylist()
            elif not isinstance(part, Note):
                columns = [values.to_pylist() if isinstance(values, pa.Array) else list(values) for values in part.values()]
                rows += [dict(zip(part, row, strict=True)) for row in zip(*columns, strict=True)]
    return schema, rows, bad
