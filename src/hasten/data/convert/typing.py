"""Infer the types of columns from some records, and enforce them for all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeAlias

import pyarrow as pa

from hasten.core.errors import DataError
from hasten.data.convert.contract import Bad, Choices
from hasten.data.convert.refusals import needed_types

Found: TypeAlias = tuple[str, dict[str, Any] | str, Any]
"""One item of a source: its position in words, its record or the reason it has none, and its raw form."""
_TABLE_ROWS = 256
"""Number of rows of a table built at once. It is small because a record can be an image file."""
_MAJORITY_FRAC = 0.9
"""Minimum share of values of one kind for the other values to be treated as errors."""


def types_of(records: Sequence[dict[str, Any]], choices: Choices) -> pa.Schema:
    """Infer types that fit all these records.

    Raises:
        DataError: A column contains different kinds of values, or a requested column is in none of the records.
    """
    names = list(dict.fromkeys(name for record in records for name in record))
    missing = [name for name in choices.columns if name not in names]
    if missing:
        raise DataError(f"no record has a field {missing[0]!r}; the fields are {', '.join(names)}.")
    return pa.schema(
        [
            pa.field(name, _settled(_type(name, [record.get(name) for record in records])))
            for name in choices.columns or names
        ]
    )


def table_of(records: Sequence[dict[str, Any]], schema: pa.Schema, choices: Choices) -> pa.Table | str:
    """Convert records to a table of these types, or return the reason why that is impossible."""
    if not choices.columns:
        unknown = sorted({name for record in records for name in record} - set(schema.names))
        if unknown:
            return f"unknown field {unknown[0]!r}: it is not in the records that the types were inferred from"
    try:
        arrays = [pa.array([record.get(part.name) for record in records], part.type) for part in schema]
    except (ValueError, TypeError, OverflowError):
        for part in schema:
            try:
                pa.array([record.get(part.name) for record in records], part.type)
            except (ValueError, TypeError, OverflowError):
                return f"field {part.name!r} is not of type {part.type}"
        raise
    return pa.Table.from_arrays(arrays, schema=schema)


def record_of(value: Any) -> dict[str, Any] | str:
    """Return a value if it is a record, or the reason why it is not."""
    return value if isinstance(value, dict) else f"not a record {{...}} but a {type(value).__name__}"


def read_records(
    path: str, found: Iterable[Found], choices: Choices, raw: Callable[[Any], bytes] = bytes
) -> Iterator[pa.Table | Bad]:
    """Convert the records of a file to tables with a bounded number of rows; see `tables_of` for the arguments."""
    schema, remaining = needed_types(choices), iter(found)
    while some := list(islice(remaining, _TABLE_ROWS)):
        yield from tables_of(path, some, schema, choices, raw)


def tables_of(
    path: str, found: Sequence[Found], schema: pa.Schema, choices: Choices, raw: Callable[[Any], bytes] = bytes
) -> Iterator[pa.Table | Bad]:
    """Convert records to a table, and return bad records with reasons. Records are checked one by one only if some are bad.

    Args:
        path: The file they were read from.
        found: The items read.
        schema: Types of the columns.
        choices: The user's choices.
        raw: Converts the raw form of a bad record to bytes.
    """
    records = [record for _, record, _ in found if isinstance(record, dict)]
    table = table_of(records, schema, choices) if len(records) == len(found) else None
    if isinstance(table, pa.Table):
        yield table
        return
    good = []
    for position, record, source in found:
        one = table_of([record], schema, choices) if isinstance(record, dict) else record
        if isinstance(one, str):
            yield Bad(path, position, one, raw(source))
        else:
            good.append(one)
    if good:
        yield pa.concat_tables(good).combine_chunks()


def _settled(kind: pa.DataType) -> pa.DataType:
    """Replace null types by text, for fields that were null in every record."""
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_settled(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(part.name, _settled(part.type)) for part in kind])
    return kind


def _type(name: str, values: list[Any]) -> pa.DataType:
    """Infer the type of a column. If nearly all values are of one kind, use that kind: records with others are bad."""
    try:
        return pa.array(values).type
    except (ValueError, TypeError, OverflowError):
        kinds = Counter(_kind(value) for value in values if value is not None)
        kind, count = kinds.most_common(1)[0]
        if count >= _MAJORITY_FRAC * kinds.total():
            try:
                return pa.array([value for value in values if value is None or _kind(value) == kind]).type
            except (ValueError, TypeError, OverflowError):
                kinds[f"different {kind}s"] = kinds.pop(kind)
    counts = ", ".join(f"{count} of kind {kind}" for kind, count in kinds.most_common())
    raise DataError(
        f"field {name!r} contains different kinds of values ({counts}): make them uniform, or omit the field (--columns)."
    )


def _kind(value: Any) -> str:
    return "number" if isinstance(value, (int, float)) and not isinstance(value, bool) else type(value).__name__
