"""The types of columns, found from some records and held to by all."""

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
"""What was read where a record should stand: its position in words, the record or why it is none, and its source."""
_TABLE_ROWS = 256
"""Of a table that is made at once: a record may be an image file."""
_MOST = 0.9
"""Share of the values that must be of one kind for the others to be taken for mistakes."""


def types_of(records: Sequence[dict[str, Any]], choices: Choices) -> pa.Schema:
    """Types that hold for all these records.

    Raises:
        DataError: A column holds things of two kinds, or a column that was asked for is in none of them.
    """
    names = list(dict.fromkeys(name for record in records for name in record))
    missing = [name for name in choices.columns if name not in names]
    if missing:
        raise DataError(f"no record has a field {missing[0]!r}; they have {', '.join(names)}.")
    return pa.schema(
        [
            pa.field(name, _settled(_type(name, [record.get(name) for record in records])))
            for name in choices.columns or names
        ]
    )


def table_of(records: Sequence[dict[str, Any]], schema: pa.Schema, choices: Choices) -> pa.Table | str:
    """Records as a table of these types, or in words why they are none."""
    if not choices.columns:
        unknown = sorted({name for record in records for name in record} - set(schema.names))
        if unknown:
            return f"a field {unknown[0]!r} that the records looked at first do not have"
    try:
        arrays = [pa.array([record.get(part.name) for record in records], part.type) for part in schema]
    except (ValueError, TypeError, OverflowError):
        for part in schema:
            try:
                pa.array([record.get(part.name) for record in records], part.type)
            except (ValueError, TypeError, OverflowError):
                return f"field {part.name!r} is no {part.type}"
        raise
    return pa.Table.from_arrays(arrays, schema=schema)


def record_of(value: Any) -> dict[str, Any] | str:
    """A record, or in words why a value is none."""
    return value if isinstance(value, dict) else f"a {type(value).__name__} is no record: {{...}} is"


def read_records(
    path: str, found: Iterable[Found], choices: Choices, raw: Callable[[Any], bytes] = bytes
) -> Iterator[pa.Table | Bad]:
    """Records of a file as tables of a bounded number of rows; arguments as of `tables_of`."""
    schema, remaining = needed_types(choices), iter(found)
    while some := list(islice(remaining, _TABLE_ROWS)):
        yield from tables_of(path, some, schema, choices, raw)


def tables_of(
    path: str, found: Sequence[Found], schema: pa.Schema, choices: Choices, raw: Callable[[Any], bytes] = bytes
) -> Iterator[pa.Table | Bad]:
    """Records as a table, and each that is none with the reason; only where there is one they are looked at one by one.

    Args:
        path: The file they were read from.
        found: What was read.
        schema: The types of the columns.
        choices: The user's.
        raw: Makes the bytes of a bad record from its source.
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
    """The type with text in place of what no record told: a field that was null every time."""
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_settled(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(part.name, _settled(part.type)) for part in kind])
    return kind


def _type(name: str, values: list[Any]) -> pa.DataType:
    """The type of a column; where a few values are of another kind than most, that of most: those few are bad records."""
    try:
        return pa.array(values).type
    except (ValueError, TypeError, OverflowError):
        kinds = Counter(_kind(value) for value in values if value is not None)
        kind, count = kinds.most_common(1)[0]
        if count >= _MOST * kinds.total():
            try:
                return pa.array([value for value in values if value is None or _kind(value) == kind]).type
            except (ValueError, TypeError, OverflowError):
                kinds[f"different {kind}s"] = kinds.pop(kind)
    seen = ", ".join(f"{count} of kind {kind}" for kind, count in kinds.most_common())
    raise DataError(
        f"field {name!r} holds things of different kinds ({seen}): make them one kind, or leave the field out (--columns)."
    )


def _kind(value: Any) -> str:
    return "number" if isinstance(value, (int, float)) and not isinstance(value, bool) else type(value).__name__
