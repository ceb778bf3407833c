"""Infer the types of columns from some records, and enforce them for all."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from hasten.core.errors import DataError
from hasten.data.convert.contract import Bad, Choices
from hasten.data.convert.reasons import in_words, reason_of, tallied
from hasten.data.convert.refusals import needed_types, no_records

Found: TypeAlias = tuple[str, dict[str, Any] | str, Any]
"""One item of a source: its position in words, its record or the reason it has none, and its raw form."""
_TABLE_ROWS = 256
"""Number of rows of a table built at once. It is small because a record can be an image file."""
_TABLE_BYTES = 2**26
"""Number of bytes of such a table, of text and bytes alone."""
_MAJORITY_FRAC = 0.9
"""Minimum share of values of one kind for the other values to be treated as errors."""
_MAX_DEPTH = 64
"""Maximum nesting of the records that types are inferred from."""
_MAX_KEYS = 10_000
"""Maximum number of keys of such a record, and of different keys of a field."""
_INFERRED_ITEMS = 100_000
"""Maximum number of items of a list column that its type is inferred from."""
_PLAIN = {"bool": pa.bool_(), "str": pa.string(), "bytes": pa.binary()}


def types_of(records: Sequence[dict[str, Any]], choices: Choices) -> pa.Schema:
    """Infer types that fit these records, or nearly all of them: records with other values are bad.

    Raises:
        DataError: A column contains different kinds of values, or a requested column is in none of the records.
    """
    records = [record for record in records if not _too_large(record)]
    if not records:
        raise DataError(f"all records have more than {_MAX_KEYS:,} keys, or are nested more than {_MAX_DEPTH} levels deep.")
    names = list(dict.fromkeys(name for record in records for name in record))
    missing = [name for name in choices.columns if name not in names]
    if missing:
        raise DataError(f"no record has a field {missing[0]!r}; the fields are {', '.join(names)}.")
    return pa.schema(
        [pa.field(name, _type_of(name, [record.get(name) for record in records])) for name in choices.columns or names]
    )


def record_of(value: Any) -> dict[str, Any] | str:
    """Return a value if it is a record, or the reason why it is not."""
    return value if isinstance(value, dict) else f"not a record {{...}} but a {type(value).__name__}"


def records_of(path: str, found: Iterable[dict[str, Any] | str], wanted: str) -> list[dict[str, Any]]:
    """Return the records among some, of which the others are reasons why they cannot be read.

    Raises:
        BrokenFileError: There are none; says what is wanted instead, and the commonest reasons.
    """
    records, reasons = list[dict[str, Any]](), list[tuple[str, int]]()
    for one in found:
        if isinstance(one, str):
            reasons.append((one, 1))
        else:
            records.append(one)
    if not records:
        hint = (
            "; if it is not UTF-8, set --encoding"
            if any(reason.startswith("invalid UTF-8") for reason, _ in reasons)
            else ""
        )
        raise no_records(path, f"{wanted} ({in_words(tallied(reasons))}{hint})" if reasons else wanted)
    return records


def read_records(
    path: str, found: Iterable[Found], choices: Choices, raw: Callable[[Any], bytes] = bytes
) -> Iterator[pa.Table | Bad]:
    """Convert the records of a file to tables with a bounded number of rows; see `tables_of` for the arguments."""
    schema = needed_types(choices)
    for some in batches(found):
        yield from tables_of(path, some, schema, choices, raw)


def batches(found: Iterable[Found]) -> Iterator[list[Found]]:
    """Group items so that their number and the bytes of their values are bounded."""
    some, size = list[Found](), 0
    try:
        for item in found:
            some.append(item)
            values = item[1].values() if isinstance(item[1], dict) else ()
            size += sum(len(value) for value in values if isinstance(value, (bytes, str)))
            if len(some) >= _TABLE_ROWS or size >= _TABLE_BYTES:
                yield some
                some, size = [], 0
    except Exception:
        if some:
            yield some  # what was found before the damage
        raise
    if some:
        yield some


def tables_of(
    path: str, found: Sequence[Found], schema: pa.Schema, choices: Choices, raw: Callable[[Any], bytes] = bytes
) -> Iterator[pa.Table | Bad]:
    """Convert records to a table, and return those that it would change with the reason.

    Args:
        path: The file they were read from.
        found: The items read.
        schema: Types of the columns.
        choices: The user's choices.
        raw: Converts the raw form of a bad record to bytes.
    """
    checks = {part.name: _check_of(part.type) for part in schema}
    good: list[dict[str, Any]] = []
    for position, record, source in found:
        try:
            reason = record if isinstance(record, str) else _misfit(record, schema, checks, choices)
        except Exception as error:  # noqa: BLE001  if one record fails, the others can be stored
            reason = reason_of(error)
        if reason or isinstance(record, str):
            yield Bad(path, position, reason, raw(source))
        else:
            good.append(record)
    if not good:
        return
    try:
        yield _table_of(good, schema)
    except Exception:  # noqa: BLE001  one of the records cannot be stored; find it
        yield from _one_by_one(path, found, good, schema, raw)


def _table_of(records: Sequence[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    return pa.table([pa.array([record.get(part.name) for record in records], part.type) for part in schema], schema=schema)


def _one_by_one(
    path: str, found: Sequence[Found], good: Sequence[dict[str, Any]], schema: pa.Schema, raw: Callable[[Any], bytes]
) -> Iterator[pa.Table | Bad]:
    places = {id(record): (position, source) for position, record, source in found}
    for record in good:
        try:
            yield _table_of([record], schema)
        except Exception as error:  # noqa: BLE001  if one record fails, the others can be stored
            position, source = places[id(record)]
            yield Bad(path, position, reason_of(error), raw(source))


def _misfit(record: dict[str, Any], schema: pa.Schema, checks: Mapping[str, Callable[[Any], bool]], choices: Choices) -> str:
    """Return the reason why columns of these types would change a record; empty if they store it as it is."""
    if not choices.columns and not record.keys() <= checks.keys():
        unknown = min(record.keys() - checks.keys())
        if too_large := _too_large(record):
            return too_large
        return f"unknown field {unknown!r}: it is not in the records that the types were inferred from"
    for name, fits in checks.items():
        value = record.get(name)
        if value is not None and not fits(value):
            if isinstance(value, str) and pa.types.is_string(schema.field(name).type):
                return f"field {name!r} contains half of a surrogate pair, which is not text"
            return f"field {name!r} is not of type {schema.field(name).type}"
    return ""


def _type_of(name: str, values: Sequence[Any]) -> pa.DataType:
    """Infer the type of a field from the kind of nearly all its values. A field without values is text."""
    kinds = Counter(_kind(value) for value in values if value is not None)
    if not kinds:
        return pa.string()
    kind, count = kinds.most_common(1)[0]
    if count < _MAJORITY_FRAC * kinds.total():
        counts = ", ".join(f"{count} of kind {kind}" for kind, count in kinds.most_common())
        raise DataError(
            f"field {name!r} contains different kinds of values ({counts}): make them uniform, or omit the field "
            f"(--columns)."
        )
    values = [value for value in values if value is not None and _kind(value) == kind]
    if kind == "number":
        return _number_type(values)
    if kind == "list":
        return pa.list_(_item_type(name, values))
    if kind == "dict":
        names = dict.fromkeys(inner for value in values for inner in value)
        if len(names) > _MAX_KEYS:
            raise DataError(f"field {name!r} has more than {_MAX_KEYS:,} different keys: omit it (--columns).")
        return pa.struct([pa.field(n, _type_of(f"{name}.{n}", [value.get(n) for value in values])) for n in names])
    if kind not in _PLAIN:
        raise DataError(f"field {name!r} contains values of kind {kind}, which cannot be stored: omit it (--columns).")
    return _PLAIN[kind]


def _item_type(name: str, lists: Sequence[Any]) -> pa.DataType:
    dtypes = {value.dtype if isinstance(value, np.ndarray) else None for value in lists}
    if len(dtypes) == 1 and (dtype := dtypes.pop()) is not None:
        return pa.from_numpy_dtype(dtype.newbyteorder("="))
    items = [item for value in lists for item in (value.tolist() if isinstance(value, np.ndarray) else value)]
    return _type_of(f"{name}[]", items[:: max(1, len(items) // _INFERRED_ITEMS)])


def _number_type(values: Sequence[int | float]) -> pa.DataType:
    """Return the type that holds most of the numbers exactly."""
    integers = (pa.int64(), pa.uint64())
    candidates = (pa.float64(), *integers) if any(isinstance(value, float) for value in values) else integers
    return max(candidates, key=lambda kind: sum(map(_check_of(kind), values)))


def _kind(value: Any) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return "number"
    return "list" if isinstance(value, (list, tuple, np.ndarray)) else type(value).__name__


def _too_large(record: dict[str, Any]) -> str:
    """Return why types are not inferred from a record; empty if they are."""
    waiting: list[tuple[Any, int]] = [(record, 0)]
    num_keys = 0
    while waiting:
        value, level = waiting.pop()
        if level > _MAX_DEPTH:
            return "nested too deeply"
        num_keys += len(value) if isinstance(value, dict) else 0
        if num_keys > _MAX_KEYS:
            return f"more than {_MAX_KEYS:,} keys"
        items = value.values() if isinstance(value, dict) else value
        waiting += ((item, level + 1) for item in items if isinstance(item, (dict, list, tuple)))
    return ""


@lru_cache(maxsize=256)
def _check_of(kind: pa.DataType) -> Callable[[Any], bool]:
    """Return a function that tells if a value other than None can be stored as this type unchanged.

    Arrow itself truncates floats to integers, drops unknown keys of structs, and mixes up text and bytes.
    """
    types = pa.types
    if types.is_boolean(kind):
        return lambda value: isinstance(value, bool)
    if types.is_integer(kind):
        return partial(_fits_integer, *_bounds(kind))
    if types.is_floating(kind):
        return partial(_fits_float, np.dtype(kind.to_pandas_dtype()).type)
    if types.is_string(kind) or types.is_large_string(kind):
        return _fits_text
    if types.is_binary(kind) or types.is_large_binary(kind):
        return lambda value: isinstance(value, bytes)
    if types.is_list(kind) or types.is_large_list(kind):
        return partial(_fits_list, kind.value_type, _check_of(kind.value_type))
    if types.is_struct(kind):
        checks = {part.name: _check_of(part.type) for part in kind}
        return lambda value: (
            isinstance(value, dict)
            and value.keys() <= checks.keys()
            and all(item is None or checks[name](item) for name, item in value.items())
        )
    return partial(_fits_other, kind)


def _bounds(kind: pa.DataType) -> tuple[int, int]:
    limits = np.iinfo(kind.to_pandas_dtype())
    return int(limits.min), int(limits.max)


def _dtype_of(kind: pa.DataType) -> np.dtype[Any] | None:
    """Return the NumPy type of numbers and booleans."""
    types = pa.types
    plain = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    return np.dtype(kind.to_pandas_dtype()) if plain else None


def _fits_integer(low: int, high: int, value: Any) -> bool:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return (whole or (isinstance(value, float) and value.is_integer())) and low <= value <= high


def _fits_float(kind: Any, value: Any) -> bool:
    if isinstance(value, float):
        return kind is np.float64 or math.isnan(value) or float(kind(value)) == value
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= 2 ** (np.finfo(kind).nmant + 1)


def _fits_text(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        return value.isascii() or bool(value.encode())
    except UnicodeEncodeError:  # half of a surrogate pair
        return False


def _fits_other(kind: pa.DataType, value: Any) -> bool:
    try:
        return bool(pa.scalar(value, kind).as_py() == value)
    except (ValueError, TypeError, OverflowError):
        return False


def _fits_list(kind: pa.DataType, fits: Callable[[Any], bool], value: Any) -> bool:
    if isinstance(value, np.ndarray):
        if value.dtype == _dtype_of(kind):
            return True
        value = value.tolist()
    return isinstance(value, (list, tuple)) and all(item is None or fits(item) for item in value)
