"""Read JSON into frozen dataclasses, report every mistake with its key path, and write the same JSON back.

A field without a default must be in the file. A field with a default may be missing, and is not written if it is None.
Unknown keys of a table are kept in its `more`, so that reading and writing loses nothing.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field
from typing import Any, Literal, TypeVar

WORDS: dict[Any, str] = {int: "a whole number", float: "a finite number", str: "a string", bool: "true or false"}


@dataclass(frozen=True, kw_only=True)
class Table:
    """A JSON object.

    Attributes:
        more: Keys of the file that no field describes.
    """

    more: Mapping[str, Any] = field(default_factory=dict)


T = TypeVar("T", bound=Table)


def read(kind: type[T], value: Any, name: str) -> tuple[T, list[str]]:
    """Return a table read from JSON, and its mistakes. The table is valid only if there are none.

    Args:
        kind: The dataclass that describes the table.
        value: The data, as returned by `json.loads`.
        name: Name of the whole table in messages.
    """
    problems: list[str] = []
    table: T = _read(value, kind, "", problems, name)
    return table, problems


def write(value: Any) -> Any:
    """Return JSON-compatible data. Numbers that are not finite become null."""
    if isinstance(value, Table):
        kind: Any = type(value)
        known = {key: write(getattr(value, item.name)) for key, item in _fields(kind).items()}
        optional = {key for key, item in _fields(kind).items() if _is_optional(item)}
        return {key: item for key, item in known.items() if item is not None or key not in optional} | write(value.more)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): write(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [write(item) for item in value]
    return value


@functools.cache
def _fields(kind: Any) -> dict[str, Field[Any]]:
    """Return the fields by their keys in the file."""
    return {item.metadata.get("key", item.name): item for item in dataclasses.fields(kind) if item.name != "more"}


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _is_optional(item: Field[Any]) -> bool:
    """Return whether the key may be missing. A field marked `required` has a default only in Python."""
    if item.metadata.get("required"):
        return False
    return item.default is not MISSING or item.default_factory is not MISSING


def json_schema(kind: Any) -> dict[str, Any]:
    """Return the JSON schema of the files that a dataclass describes, with a definition for each table."""
    definitions: dict[str, Any] = {}
    whole = _schema_of(kind, definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"Hasten {kind.__name__.lower()}", **whole,
        "$defs": definitions,
    }  # fmt: skip


def _schema_of(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, arms = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return {}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_schema_of(arm, definitions) for arm in arms]}
    if origin is tuple:
        return {"type": "array", "items": _schema_of(arms[0], definitions)}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": _schema_of(arms[1], definitions)}
    if origin is Literal or isinstance(hint, enum.EnumMeta):
        return {"enum": list(arms) if origin is Literal else [item.value for item in hint]}
    if isinstance(hint, type) and issubclass(hint, Table):
        if hint.__name__ not in definitions:
            definitions[hint.__name__] = {}  # a table may contain itself
            kind: Any = hint
            items, hints = _fields(kind), _hints(kind)
            definitions[hint.__name__] = {
                "type": "object",
                "properties": {key: _schema_of(hints[item.name], definitions) for key, item in items.items()},
                "required": [key for key, item in items.items() if not _is_optional(item)],
            }
        return {"$ref": f"#/$defs/{hint.__name__}"}
    names = {types.NoneType: "null", int: "integer", float: "number", str: "string", bool: "boolean"}
    return {"type": names[hint]}


def _read(value: Any, hint: Any, path: str, problems: list[str], name: str = "") -> Any:
    origin, arms = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        return _read_union(value, arms, path, problems)
    if origin is tuple:
        return _read_list(value, arms[0], path, problems)
    if origin is Mapping or (isinstance(hint, type) and issubclass(hint, Table)):
        if not isinstance(value, Mapping):
            problems.append(f"`{path or name}` must be a table, not {value!r}")
            return value
        if origin is Mapping:
            return {key: _read(item, arms[1], f"{path}.{key}", problems) for key, item in value.items()}
        return _read_table(value, hint, path, problems)
    allowed = arms if origin is Literal else tuple(hint) if isinstance(hint, enum.EnumMeta) else None
    if allowed is not None:
        if value not in allowed:
            problems.append(f"`{path}` must be one of {', '.join(repr(str(item)) for item in allowed)}, not {value!r}")
            return value
        return value if origin is Literal else hint(value)
    if not _is_plain(value, hint):
        problems.append(f"`{path}` must be {WORDS[hint]}, not {value!r}")
    return value


def _read_table(value: Mapping[str, Any], kind: Any, path: str, problems: list[str]) -> Table | None:
    known: dict[str, Any] = {}
    more = {key: item for key, item in value.items() if key not in _fields(kind)}
    missing = False
    for key, item in _fields(kind).items():
        where = f"{path}.{key}" if path else key
        if key not in value:
            if not _is_optional(item):
                problems.append(f"`{where}` is missing")
                missing = True
        elif value[key] is None and item.default is None and _is_optional(item):
            more[key] = None  # null, although the key may be missing: it is written back unchanged
        else:
            known[item.name] = _read(value[key], _hints(kind)[item.name], where, problems)
    return None if missing else kind(**known, more=more)


def _read_union(value: Any, arms: tuple[Any, ...], path: str, problems: list[str]) -> Any:
    """Read the first arm that fits. If none does, report the problems of the first."""
    if value is None and types.NoneType in arms:
        return None
    first: list[str] = []
    for arm in arms:
        if arm is not types.NoneType:
            mistakes: list[str] = []
            read_value = _read(value, arm, path, mistakes)
            if not mistakes:
                return read_value
            first = first or mistakes
    problems += first
    return value


def _read_list(value: Any, kind: Any, path: str, problems: list[str]) -> Any:
    if not isinstance(value, list):
        problems.append(f"`{path}` must be a list, not {value!r}")
        return value
    return tuple(_read(item, kind, f"{path}[{position}]", problems) for position, item in enumerate(value))


def _is_plain(value: Any, kind: Any) -> bool:
    if isinstance(value, bool):
        return kind is bool
    if kind is float:
        return isinstance(value, int | float) and math.isfinite(value)
    return isinstance(value, kind)
