"""Hold a value read from JSON against the TypedDict that describes it, and say in words where they differ."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NotRequired

WORDS: dict[Any, str] = {int: "a whole number", float: "a finite number", str: "a string", bool: "true or false"}


def mismatches(value: Any, hint: Any, path: str = "") -> Iterator[str]:
    """Each place where `value` is not what the type `hint` says, as a sentence that names the key path.

    Knows what a schema of TypedDicts needs: tables, `NotRequired`, lists, dicts, unions, literals, plain values.
    """
    origin = typing.get_origin(hint)
    if hint is Any:
        return
    if origin is NotRequired:
        yield from mismatches(value, typing.get_args(hint)[0], path)
    elif origin in (typing.Union, types.UnionType):
        yield from _in_union(value, typing.get_args(hint), path)
    elif origin is Literal:
        if value not in typing.get_args(hint):
            yield f"`{path}` must be one of {', '.join(map(repr, typing.get_args(hint)))}, not {value!r}"
    elif origin is list:
        yield from _in_list(value, typing.get_args(hint)[0], path)
    elif origin is dict or typing.is_typeddict(hint):
        yield from _in_table(value, hint, path)
    elif not _is_plain(value, hint):
        yield f"`{path}` must be {WORDS[hint]}, not {value!r}"


def _is_plain(value: Any, kind: Any) -> bool:
    if isinstance(value, bool):
        return kind is bool
    if kind is float:
        return isinstance(value, int | float) and math.isfinite(value)
    return isinstance(value, kind)


def _in_union(value: Any, arms: tuple[Any, ...], path: str) -> Iterator[str]:
    if value is None and types.NoneType in arms:
        return
    found = [list(mismatches(value, arm, path)) for arm in arms if arm is not types.NoneType]
    if all(found):
        yield from found[0]


def _in_list(value: Any, kind: Any, path: str) -> Iterator[str]:
    if not isinstance(value, list):
        yield f"`{path}` must be a list, not {value!r}"
        return
    for position, item in enumerate(value):
        yield from mismatches(item, kind, f"{path}[{position}]")


def _in_table(value: Any, hint: Any, path: str) -> Iterator[str]:
    if not isinstance(value, Mapping):
        yield f"`{path or 'evidence'}` must be a table, not {value!r}"
        return
    if typing.is_typeddict(hint):
        fields = typing.get_type_hints(hint, include_extras=True)
    else:
        fields = dict.fromkeys(value, typing.get_args(hint)[1])
    for key, kind in fields.items():
        name = f"{path}.{key}" if path else key
        if key in value:
            yield from mismatches(value[key], kind, name)
        elif typing.get_origin(kind) is not NotRequired:
            yield f"`{name}` is missing"
