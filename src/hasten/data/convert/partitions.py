"""Turn values in the names of folders, such as `year=2020/part.parquet`, into columns, as pyarrow, pandas and Spark do."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa

from hasten.core.errors import DataError
from hasten.data.convert.contract import Unit

_MISSING = "__HIVE_DEFAULT_PARTITION__"
_INTEGER = re.compile("0|-?[1-9][0-9]{0,17}")


def with_values(units: Sequence[Unit], source: Path) -> list[Unit]:
    """Add the values in the names of the folders between the source and its files to units.

    Raises:
        DataError: Two folders of a file have the same name before `=`.
    """
    return [replace(unit, values=_values(Path(unit.path), source)) for unit in units]


def _values(file: Path, source: Path) -> tuple[tuple[str, str | None], ...]:
    if not source.is_dir():
        return ()
    pairs = [part.partition("=")[::2] for part in file.relative_to(source).parts[:-1] if "=" in part.strip("=")]
    if len(dict(pairs)) < len(pairs):
        raise DataError(f"{file} has two folders with a value of the same name: rename one of them.")
    return tuple((unquote(name), None if value == _MISSING else unquote(value)) for name, value in pairs)


def types_of_values(units: Sequence[Unit]) -> dict[str, pa.DataType]:
    """Return the type of each column: integers if all its values are written like integers, otherwise text."""
    values: dict[str, set[str]] = {}
    for unit in units:
        for name, value in unit.values:
            values.setdefault(name, set()).update(() if value is None else [value])
    return {
        name: pa.int64() if given and all(map(_INTEGER.fullmatch, given)) else pa.string() for name, given in values.items()
    }


def in_words(types: Mapping[str, pa.DataType], in_files: Collection[str]) -> list[str]:
    """Say which columns the names of folders become."""
    return [
        f"not read: the values of {name} in the names of folders, because the files have a column {name}"
        if name in in_files
        else f"column {name} ({kind}) is read from the names of folders"
        for name, kind in types.items()
    ]


def with_columns(table: pa.Table, unit: Unit, types: Mapping[str, pa.DataType]) -> pa.Table:
    """Add the columns that the names of a unit's folders hold to a table; null where a folder is missing."""
    values = dict(unit.values)
    for name, kind in types.items():
        table = table.append_column(name, pa.repeat(pa.scalar(values.get(name), pa.string()).cast(kind), table.num_rows))
    return table
