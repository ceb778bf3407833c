"""The plan: which optimizations with which settings, and the machine and job they were proved on. On disk: `hasten.toml`.

```toml
# Hasten plan. Train under it with: hasten run my_job.py:MyJob --plan hasten.toml
schema = 1
target = "my_job.py:MyJob"

[optimizations.precision]
dtype = "bfloat16"

[optimizations.channels_last]

[proved]
machine = "2 cores, AMD EPYC, torch 2.13.0"
ratio = 1.61
```
"""

from __future__ import annotations

import difflib
import math
import shlex
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import tomli_w

from hasten.core.card import Trait
from hasten.core.errors import PlanError
from hasten.core.files import write_atomically
from hasten.core.optimization import Optimization, clash, ordered
from hasten.core.plan_file import SCHEMA, read_plan_text, read_tables

Catalogue = Mapping[str, type[Optimization]]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """An ordered set of optimizations, with facts about its proof.

    Attributes:
        optimizations: The optimizations in the order they are applied.
        target: The job it was made for; empty if unknown.
        proved: Facts about the proof (machine, job fingerprint, ratio); strings and numbers only.
        log_to: Places for metrics besides the run's folder, each `NAME[:OPTIONS]` as for `hasten run --log-to`.
    """

    optimizations: tuple[Optimization, ...] = ()
    target: str = ""
    proved: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    log_to: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for position, first in enumerate(self.optimizations):
            for second in self.optimizations[position + 1 :]:
                if why := clash(first, second):
                    raise PlanError(f"This plan is not possible: {why}. Remove one of them.")
        try:
            object.__setattr__(self, "optimizations", tuple(ordered(self.optimizations)))
        except ValueError as error:
            raise PlanError(f"This plan cannot be ordered: {error}.") from error

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its optimizations, in order."""
        return tuple(item.card.name for item in self.optimizations)

    def has(self, trait: Trait) -> bool:
        """Whether any of its optimizations has this trait."""
        return any(trait in item.card.traits for item in self.optimizations)

    @property
    def samples_factor(self) -> float:
        """Samples per optimizer update under this plan, as a multiple of the job's own."""
        return math.prod(item.samples_factor for item in self.optimizations)

    def updates_for(self, updates: int) -> int:
        """Return how many updates under this plan use about as many samples as `updates` of the job; at least 1."""
        return max(round(updates / self.samples_factor), 1)

    def plus(self, *more: Optimization) -> Plan:
        """Return this plan with more optimizations. An optimization of the same name is replaced."""
        new = {item.card.name for item in more}
        kept = tuple(item for item in self.optimizations if item.card.name not in new)
        return replace(self, optimizations=kept + more)

    def minus(self, name: str) -> Plan:
        """Return this plan without the optimization called `name`."""
        kept = tuple(item for item in self.optimizations if item.card.name != name)
        return replace(self, optimizations=kept)

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return name -> settings as JSON-compatible data."""
        return {item.card.name: item.settings() for item in self.optimizations}

    @classmethod
    def from_dict(cls, tables: Mapping[str, Any], catalogue: Catalogue, *, where: str = "plan") -> Plan:
        """Create a plan from name -> settings. Raises PlanError that names the wrong key."""
        items = tuple(_optimization(name, table, catalogue, where) for name, table in tables.items())
        return cls(optimizations=items)

    def to_toml(self, path: Path | None = None) -> str:
        """Return the plan as TOML with comments.

        Args:
            path: Where the file will be, for the command in its header; None leaves the command out.
        """
        lines = [f"# Hasten plan: {len(self.optimizations)} optimization(s). Order does not matter."]
        if self.target and path is not None:
            lines.append(f"# Train under it with: hasten run {shlex.quote(self.target)} --plan {shlex.quote(str(path))}")
        head: dict[str, Any] = {"schema": SCHEMA} | ({"target": self.target} if self.target else {})
        head |= {"log_to": list(self.log_to)} if self.log_to else {}
        lines += ["", _toml(head)]
        if not self.optimizations:
            lines += ["# Empty: no optimization was proved to make this job faster without harm.", "[optimizations]", ""]
        for item in self.optimizations:
            header, _, settings = _toml({"optimizations": {item.card.name: item.settings()}}).partition("\n")
            lines += [f"{header}  # {item.numerics}: {item.card.summary}", settings]
        if self.proved:
            lines.append(_toml({"proved": self.proved}))
        return "\n".join(lines).rstrip("\n") + "\n"

    @classmethod
    def from_toml(cls, text: str, catalogue: Catalogue, *, where: str = "plan") -> Plan:
        """Read a plan. Raises PlanError that names the file and the wrong key."""
        data = read_tables(text, where=where)
        read = cls.from_dict(data.get("optimizations", {}), catalogue, where=where)
        return replace(
            read, target=data.get("target", ""), proved=data.get("proved", {}), log_to=tuple(data.get("log_to", ()))
        )

    @classmethod
    def load(cls, path: Path, catalogue: Catalogue) -> Plan:
        """Read a plan file. Raises PlanError if it is missing or invalid."""
        return cls.from_toml(read_plan_text(path), catalogue, where=str(path))

    def save(self, path: Path) -> None:
        """Write the plan to a file, atomically."""
        write_atomically(path, self.to_toml(path))


def _optimization(name: str, table: object, catalogue: Catalogue, where: str) -> Optimization:
    if name not in catalogue:
        near = difflib.get_close_matches(name, catalogue, n=1)
        hint = f"Did you mean `{near[0]}`?" if near else "`hasten doctor --catalogue` lists all."
        raise PlanError(f"{where}: unknown optimization `{name}`. {hint}")
    if not isinstance(table, Mapping):
        raise PlanError(f"{where}: `optimizations.{name}` must be a table of settings, not {table!r}.")
    kind = catalogue[name]
    hints = typing.get_type_hints(kind)
    names = [item.name for item in fields(kind)]
    for key, value in table.items():
        if key not in names:
            allowed = ", ".join(names) or "none"
            raise PlanError(f"{where}: `optimizations.{name}` has no setting `{key}`. Its settings: {allowed}.")
        if not _matches(value, hints[key]):
            raise PlanError(f"{where}: `optimizations.{name}.{key}` must be {_type_name(hints[key])}, not {value!r}.")
    try:
        return kind(**table)
    except ValueError as error:
        raise PlanError(f"{where}: `optimizations.{name}`: {error}") from error


def _matches(value: object, hint: Any) -> bool:
    if typing.get_origin(hint) is Literal:
        return any(type(value) is type(choice) and value == choice for choice in typing.get_args(hint))
    if hint is bool or isinstance(value, bool):
        return hint is bool and isinstance(value, bool)
    if hint is float:
        return isinstance(value, int | float)
    return isinstance(hint, type) and isinstance(value, hint)


def _type_name(hint: Any) -> str:
    if typing.get_origin(hint) is Literal:
        return "one of " + ", ".join(repr(choice) for choice in typing.get_args(hint))
    return {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}.get(hint, str(hint))


def plan_schema(catalogue: Catalogue) -> dict[str, Any]:
    """Return the JSON schema of a plan file, with the settings of every technique in the catalogue."""
    techniques = {}
    for name, kind in catalogue.items():
        hints = typing.get_type_hints(kind)
        properties = {item.name: _setting_schema(hints[item.name]) | {"default": item.default} for item in fields(kind)}
        description = kind.card.summary
        techniques[name] = {
            "type": "object", "description": description, "properties": properties, "additionalProperties": False,
        }  # fmt: skip
    scalar = {"type": ["string", "number", "boolean"]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Hasten plan",
        "type": "object",
        "properties": {
            "schema": {"const": SCHEMA},
            "target": {"type": "string"},
            "optimizations": {"type": "object", "properties": techniques, "additionalProperties": False},
            "proved": {"type": "object", "additionalProperties": scalar},
            "log_to": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["schema"],
        "additionalProperties": False,
    }


def _setting_schema(hint: Any) -> dict[str, Any]:
    if typing.get_origin(hint) is Literal:
        return {"enum": list(typing.get_args(hint))}
    return {"type": {bool: "boolean", int: "integer", float: "number"}.get(hint, "string")}


def _toml(table: Mapping[str, object]) -> str:
    try:
        return tomli_w.dumps(table)
    except TypeError as error:
        raise PlanError(f"A plan can contain only booleans, numbers, strings and lists of them: {error}.") from error
