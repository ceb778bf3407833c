"""Write values as TOML. Reading is Python's own `tomllib`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence


def toml_key(name: str) -> str:
    """A name as the left side of an assignment; in quotes where it has to be."""
    bare = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if bare else toml_value(name)


def toml_value(value: object) -> str:
    """A value as the right side of an assignment; a mapping becomes an inline table.

    Raises:
        TypeError: TOML, as it is written here, cannot hold it.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):  # NumPy's float64 is one, and its own repr is no TOML
        return float.__repr__(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        inside = ", ".join(f"{toml_key(str(name))} = {toml_value(item)}" for name, item in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    raise TypeError(f"{value!r} is no true/false, number or string, and no list or table of them")
