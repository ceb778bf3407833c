"""Parse JSON text strictly: refuse what `json` would change without an error."""

from __future__ import annotations

import json
from typing import Any

from hasten.data.convert.exact import exact_float
from hasten.data.convert.reasons import reason_of
from hasten.data.convert.typing import record_of

MAX_RECORD_BYTES = 2**26
"""Maximum size of a record."""
_MAX_DIGITS = 40
"""Maximum number of digits of an integer. No column stores more than 20."""


def parsed(line: bytes) -> dict[str, Any] | str:
    """Return the record of a line, or the reason why it has none."""
    if len(line) > MAX_RECORD_BYTES:
        return f"longer than {MAX_RECORD_BYTES:,} bytes"
    try:
        return record_of(loads(line))
    except json.JSONDecodeError as error:
        return f"invalid JSON: {error.msg.removesuffix(' at')} at character {error.pos} of the record"
    except UnicodeDecodeError as error:
        return f"invalid UTF-8: {error.reason} at byte {error.start} of the record"
    except ValueError as error:
        return f"invalid JSON: {error}"
    except Exception as error:  # noqa: BLE001  if one record fails, the others can be read
        return reason_of(error)


def loads(data: bytes | memoryview) -> Any:
    """Parse JSON in UTF-8.

    Raises:
        ValueError: It is invalid, repeats a key, is nested too deeply, or contains a number that is too large.
    """
    try:
        return _DECODER.decode(str(data, "utf-8-sig"))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object from its keys and values.

    Raises:
        ValueError: A key occurs twice.
    """
    record = dict(pairs)
    if len(record) < len(pairs):
        raise ValueError("a key occurs twice in one object")
    return record


def _integer(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"an integer has more than {_MAX_DIGITS} digits")
    return int(text)


_DECODER = json.JSONDecoder(object_pairs_hook=unique, parse_float=exact_float, parse_int=_integer)
