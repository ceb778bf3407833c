"""The known problem of each script in scripts/, read from truth.toml and checked against the scripts and the catalogue."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Literal

import torch

from hasten.core.card import Bottleneck
from hasten.core.errors import HastenError
from hasten.optimizations import catalogue

FOLDER = Path(__file__).parent
SCRIPTS = FOLDER / "scripts"
TRUTH = FOLDER / "truth.toml"
NO_REMEDY = "none"
NEEDS = ("cuda", "slow denormals")
INJECTED_LEAST = 1.3
"""Number of times as long that a bottleneck must make a script take. It also decides whether denormal numbers are slow."""
TURNS = 9
"""Number of turns of that measurement, and of products in each."""
KEYS = frozenset({"about", "bottleneck", "where", "remedy", "judged_by", "needs", "clean"})

_MARKER = re.compile(r"# truth: (\w+)$")
_STEPS = re.compile(r"\"--steps\", type=int, default=(\d+)")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One script and its known problem.

    Attributes:
        name: Name of the script, without `.py`.
        about: The injected bottleneck in words; for a clean script, what it trains.
        bottleneck: Names that count as a right diagnosis.
        lines: Lines where the user should look, counted from 1; empty for clean scripts.
        remedy: Techniques that relieve it; empty if the catalogue has none.
        judged_by: What the fixed twin improves.
        needs: What the machine needs for the bottleneck to exist: one of `NEEDS`; empty for any machine.
        clean: Whether nothing is injected.
        steps: Training steps of a whole run, the script's own default.
    """

    name: str
    about: str
    bottleneck: tuple[Bottleneck, ...]
    lines: tuple[int, ...]
    remedy: tuple[str, ...]
    judged_by: Literal["time", "memory"]
    needs: str
    clean: bool
    steps: int

    @property
    def script(self) -> Path:
        """The path of the script."""
        return SCRIPTS / f"{self.name}.py"

    @property
    def missing(self) -> str:
        """Why the bottleneck cannot exist on this machine; empty if it can."""
        if self.needs == "cuda" and not torch.cuda.is_available():
            return "this machine has no NVIDIA GPU"
        if self.needs == "slow denormals" and denormals_ratio() < INJECTED_LEAST:
            return "this processor computes with denormal numbers at full speed"
        return ""


@functools.cache
def denormals_ratio() -> float:
    """Return how many times as long multiplying takes if the numbers are denormal. The median of several turns."""
    ratios = []
    for _ in range(TURNS):
        seconds = []
        for factor in (torch.full((1 << 16,), 1e-40), torch.ones(1 << 16)):
            started = perf_counter()
            for _ in range(TURNS):
                factor.mul(0.5)
            seconds.append(perf_counter() - started)
        ratios.append(seconds[0] / seconds[1])
    return median(ratios)


def load_truth(only: list[str] | None = None) -> dict[str, Case]:
    """Read the known problems of all scripts, or of these.

    Raises:
        HastenError: A script, an entry, a name or a marked line is missing or unknown.
    """
    table: dict[str, Any] = tomllib.loads(TRUTH.read_text(encoding="utf-8"))
    scripts = {path.stem for path in SCRIPTS.glob("*.py")}
    if scripts != set(table):
        apart = ", ".join(sorted(scripts ^ set(table)))
        raise HastenError(f"truth.toml and scripts/ differ in: {apart}. Each script needs one entry, each entry one script.")
    found = {name: read_case(name, entry, (SCRIPTS / f"{name}.py").read_text("utf-8")) for name, entry in table.items()}
    if unknown := sorted(set(only or ()) - set(found)):
        raise HastenError(f"There is no script {', '.join(unknown)}. Choose from: {', '.join(sorted(found))}.")
    return {name: case for name, case in found.items() if not only or name in only}


def read_case(name: str, entry: Mapping[str, Any], source: str) -> Case:
    """Read one entry and check it against the source of its script.

    Raises:
        HastenError: A key, a bottleneck, a technique or a marker is unknown, or the script has no default for `--steps`.
    """
    clean = bool(entry.get("clean", False))
    _known(name, "keys", set(entry), KEYS)
    _known(name, "judged_by", {entry.get("judged_by", "time")}, {"time", "memory"})
    _known(name, "needs", {entry.get("needs", "")}, {"", *NEEDS})
    bottleneck = entry.get("bottleneck", [str(Bottleneck.COMPUTE)] if clean else [])
    _known(name, "bottlenecks", set(bottleneck), {str(item) for item in Bottleneck})
    remedy = [item for item in entry.get("remedy", []) if item != NO_REMEDY]
    _known(name, "techniques", set(remedy), set(catalogue()))
    marked = markers(source)
    where = entry.get("where", [])
    if set(marked) != set(where):
        raise HastenError(
            f"{name}: truth.toml lists the markers {sorted(where)}, the script has {sorted(marked)}. Make them agree."
        )
    if not clean and not (bottleneck and entry.get("remedy")):
        raise HastenError(f'{name}: a script that is not clean needs `bottleneck` and `remedy` (["none"] is one).')
    steps = _STEPS.search(source)
    if steps is None:
        raise HastenError(
            f'{name}: no default for --steps was found. Write: add_argument("--steps", type=int, default=100).'
        )
    return Case(
        name=name,
        about=entry["about"],
        bottleneck=tuple(Bottleneck(item) for item in bottleneck),
        lines=tuple(sorted(line for tag in where for line in marked[tag])),
        remedy=tuple(remedy),
        judged_by=entry.get("judged_by", "time"),
        needs=entry.get("needs", ""),
        clean=clean,
        steps=int(steps.group(1)),
    )


def markers(source: str) -> dict[str, list[int]]:
    """Return the lines that a script marks as the place to look: tag -> line numbers, counted from 1."""
    found: dict[str, list[int]] = {}
    for number, line in enumerate(source.splitlines(), start=1):
        if mark := _MARKER.search(line):
            found.setdefault(mark.group(1), []).append(number)
    return found


def _known(name: str, what: str, seen: set[str], allowed: set[str] | frozenset[str]) -> None:
    if unknown := sorted(seen - allowed):
        raise HastenError(
            f"{name}: unknown {what} {', '.join(unknown)} in truth.toml. Choose from: {', '.join(sorted(allowed))}."
        )
