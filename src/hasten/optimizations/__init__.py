"""The catalogue of optimizations, one technique per file.

Modules of this folder and classes that other packages register under the entry-point group `hasten.optimizations` are
discovered. None of them is enabled by that.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Iterable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.resources import files
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hasten.core.card import Card
from hasten.core.errors import PlanError

if TYPE_CHECKING:
    from hasten.core.optimization import Optimization

ENTRY_POINT_GROUP = "hasten.optimizations"


@cache
def catalogue() -> dict[str, type[Optimization]]:
    """Return all optimizations that were discovered, by name and sorted by name.

    Raises:
        PlanError: A registered entry point cannot be loaded, is not an optimization, or uses a name that is already taken.
    """
    kinds: dict[str, type[Optimization]] = {}
    for module in pkgutil.iter_modules(__path__):
        if module.ispkg:  # code that optimizations share
            continue
        kinds |= _in_module(importlib.import_module(f"{__name__}.{module.name}"))
    for point, kind in load_entry_points(entry_points(group=ENTRY_POINT_GROUP)):
        if kind.card.name in kinds:
            raise PlanError(f"The entry point `{point.name}` uses the name `{kind.card.name}`, which already exists.")
        kinds[kind.card.name] = kind
    return dict(sorted(kinds.items()))


def catalogue_of(names: Iterable[str]) -> dict[str, type[Optimization]]:
    """Return a catalogue that contains these optimizations, if they exist, without importing the modules of all others."""
    wanted = set(names)
    if not all(map(_has_file, wanted)):
        return catalogue()
    kinds: dict[str, type[Optimization]] = {}
    for name in sorted(wanted):
        kinds |= _in_module(importlib.import_module(f"{__name__}.{name}"))
    return kinds


def may_set_environment(name: str) -> bool:
    """Return whether an optimization may need environment variables, without importing it: most of them load torch."""
    return not _has_file(name) or "def environment(" in (files(__name__) / f"{name}.py").read_text(encoding="utf-8")


def _has_file(name: str) -> bool:
    return name.isidentifier() and name != "__init__" and (files(__name__) / f"{name}.py").is_file()


def _in_module(content: ModuleType) -> dict[str, type[Optimization]]:
    """Return the optimizations that a module defines, by name."""
    from hasten.core.optimization import Optimization

    return {
        item.card.name: item
        for item in vars(content).values()
        if isinstance(item, type) and issubclass(item, Optimization) and item.__module__ == content.__name__
    }


@cache
def measured() -> dict[str, Any]:
    """Return this project's recorded measurements: name -> `measured` (rows, or None) and `why_not_measured`.

    They come from tunings, and from benchmarks of a single technique on a job written for it. `python -m benchmarks.tables`
    writes them from benchmarks/results to `measured.json`, which this function reads.
    """
    table: dict[str, Any] = json.loads((files(__name__) / "measured.json").read_text(encoding="utf-8"))
    return dict(table["optimizations"])


def load_entry_points(points: Iterable[EntryPoint]) -> list[tuple[EntryPoint, type[Optimization]]]:
    """Load registered optimizations. Raises PlanError with the name of an invalid entry point."""
    from hasten.core.optimization import Optimization

    loaded = []
    for point in points:
        try:
            kind = point.load()
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            raise PlanError(f"The entry point `{point.name} = {point.value}` cannot be loaded: {message}") from error
        if not (isinstance(kind, type) and issubclass(kind, Optimization) and isinstance(getattr(kind, "card", None), Card)):
            raise PlanError(f"The entry point `{point.name} = {point.value}` is not an Optimization with a card.")
        loaded.append((point, kind))
    return loaded
