"""Read the file of a plan without loading its optimizations, and so without torch."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from hasten.core.errors import PlanError

SCHEMA = 1


def read_plan_text(path: Path) -> str:
    """Return the text of a plan file. Raises PlanError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"Cannot read the plan {path}: {error}. Create one with `hasten tune TARGET --out DIR`.") from error


def read_tables(text: str, *, where: str) -> dict[str, Any]:
    """Return the keys of a plan in TOML. The settings are not checked. Raises PlanError that names the wrong key."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PlanError(
            f"{where} is not valid TOML: {error}. Fix the file, or create a new plan with `hasten tune`."
        ) from error
    for key in data:
        if key not in ("schema", "target", "log_to", "optimizations", "proved"):
            raise PlanError(
                f"{where}: unknown key `{key}`; a plan has schema, target, log_to, [optimizations.NAME] and [proved]."
            )
    if data.get("schema") != SCHEMA:
        raise PlanError(
            f"{where}: key `schema` is {data.get('schema')!r}; this Hasten reads schema {SCHEMA}. "
            f"Create a new plan with `hasten tune`."
        )
    for key, kind in (("target", str), ("optimizations", dict), ("proved", dict)):
        if key in data and not isinstance(data[key], kind):
            raise PlanError(f"{where}: key `{key}` must be a {'table' if kind is dict else 'string'}, not {data[key]!r}.")
    log_to = data.get("log_to", [])
    if not (isinstance(log_to, list) and all(isinstance(text, str) for text in log_to)):
        raise PlanError(f"{where}: key `log_to` must be a list of strings, not {log_to!r}.")
    return data
