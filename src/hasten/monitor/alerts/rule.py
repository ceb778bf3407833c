"""Rules for alerts, read from TOML. A user's file changes built-in rules by name, switches them off, or adds rules."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from hasten.core.errors import DataError

Kind = Literal[
    "above_start", "below_start", "above", "below", "grows", "spike", "not_finite", "counts", "idle", "slow_rank", "incident"
]  # fmt: skip
Action = Literal["warn", "fail", "stop"]

CONTRACT = "contract"
"""Name of the rule that holds a run to what its plan was proved to do."""
BUILT_IN = Path(__file__).with_name("rules.toml")


@dataclass(frozen=True, kw_only=True)
class Rule:
    """When to raise an alert.

    Attributes:
        name: Identifies the rule.
        kind: How it judges. `above_start` and `below_start` compare with the run's own first windows (or with what a plan
            proved), `above` and `below` with `limit`. `grows`: the least value of the last windows lies above the start.
            `spike`: above the usual values of late windows. `not_finite`: NaN or infinite. `counts`: a counter has risen.
            `idle`: no step ended, for longer than in earlier pauses. `slow_rank`: this rank works longer than the others.
            `incident`: the guards of the run reported an incident of the kind `metric`, in their own words.
        metric: Name of a metric; `share.PHASE` is a phase's share of the time, `step` the seconds per step without
            validation and checkpoints.
        says: What is wrong, in one sentence; `{value}`, `{usual}`, `{change}` and `{limit}` are filled in.
        next: What to do about it.
        change: Least relative change (0.1 is 10 %), or for a share least absolute change.
        limit: Limit of `above` and `below`.
        usual: The usual value that their sentence names.
        bad: Number of bad windows, among the last `of`, from which it fires.
        of: Number of last windows that are looked at.
        good: Number of good windows in a row after which it is resolved.
        action: `warn`; `fail`: the run ends with exit status 4; `stop`: save a checkpoint and stop with exit status 4.
        enabled: Whether the rule is used.
        guard: Kind of incident that says the same. In a run with guards, the rule waits for these incidents, so that nothing
            is reported twice.
    """

    name: str
    kind: Kind
    metric: str = ""
    says: str = ""
    next: str = ""
    change: float = 0.1
    limit: float = 0.0
    usual: float = 0.0
    bad: int = 3
    of: int = 4
    good: int = 4
    action: Action = "warn"
    enabled: bool = True
    guard: str = ""

    def by_guards(self) -> Rule:
        """Return the rule for a run with guards."""
        if not self.guard:
            return self
        return replace(self, kind="incident", metric=self.guard, says="", bad=1, of=1)


_TYPES = {field.name: field.type for field in fields(Rule)}
_VALUES: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "Kind": (get_args(Kind).__contains__, ", ".join(get_args(Kind))),
    "Action": (get_args(Action).__contains__, ", ".join(get_args(Action))),
    "bool": (lambda value: isinstance(value, bool), "true or false"),
    "int": (lambda value: type(value) is int and 1 <= value <= 1000, "a number from 1 to 1000"),
    "float": (lambda value: type(value) in (int, float), "a number"),
    "str": (lambda value: isinstance(value, str), "a text"),
}
"""Type of a key -> whether a value fits, and what was expected."""


@dataclass(frozen=True, kw_only=True)
class Symptom:
    """A metric that can explain slow steps.

    Attributes:
        change: Rise over the run's first windows from which it is named.
        says: The sentence, with `{value}` and `{usual}`.
    """

    metric: str
    change: float
    says: str


def symptoms() -> tuple[Symptom, ...]:
    """Return the built-in symptoms."""
    return tuple(Symptom(**table) for table in _read(BUILT_IN)["symptom"])


def load_rules(path: Path | None = None) -> tuple[tuple[Rule, ...], tuple[Mapping[str, Any], ...]]:
    """Return the rules, and the tables `[[deliver]]` of the user's file.

    Raises:
        DataError: The file cannot be read, or a rule is wrong.
    """
    rules = {rule["name"]: _rule(rule, None, BUILT_IN) for rule in _read(BUILT_IN)["rule"]}
    if path is None:
        return tuple(rules.values()), ()
    given = _read(path)
    if unknown := sorted(set(given) - {"rule", "deliver"}):
        raise DataError(f"{path} has an unknown table `{unknown[0]}`. It may have [[rule]] and [[deliver]].")
    for table in _tables(given, "rule", path):
        name = table.get("name")
        if not isinstance(name, str) or not name:
            raise DataError(f'A rule of {path} has no name: add name = "...".')
        rules[name] = _rule(table, rules.get(name), path)
    return tuple(rule for rule in rules.values() if rule.enabled), _tables(given, "deliver", path)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not valid TOML: {error}.") from error


def _tables(given: Mapping[str, Any], key: str, path: Path) -> tuple[Mapping[str, Any], ...]:
    tables = given.get(key, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise DataError(f"`{key}` of {path} must be written as [[{key}]].")
    return tuple(tables)


def _rule(table: Mapping[str, Any], base: Rule | None, path: Path) -> Rule:
    where = f"The rule `{table['name']}` of {path}"
    for key, value in table.items():
        if key not in _TYPES:
            raise DataError(f"{where} has an unknown key `{key}`. Its keys: {', '.join(_TYPES)}.")
        fits, expected = _VALUES[str(_TYPES[key])]
        if not fits(value):
            raise DataError(f"{where}: {key} = {value!r} is not valid. Expected: {expected}.")
    numbers = {key: float(value) for key, value in table.items() if _TYPES[key] == "float"}
    if base is not None:
        rule = replace(base, **{**table, **numbers})
    elif "kind" not in table:
        raise DataError(f"{where} is new, so it needs a kind: {_VALUES['Kind'][1]}.")
    else:
        rule = Rule(**{**table, **numbers})
    if not rule.metric and rule.kind not in ("idle", "slow_rank"):
        raise DataError(f"{where} needs a metric.")
    if rule.bad > rule.of:
        raise DataError(f"{where} can never fire: bad = {rule.bad} is more than of = {rule.of}.")
    return rule
