"""The catalogue: one technique a file. What lies in this folder or is registered by a package is found, and never enabled.

Third parties register a class under the entry-point group `hasten.optimizations`.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Iterable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.resources import files
from typing import Any

from hasten.core.card import Card
from hasten.core.errors import PlanError
from hasten.core.optimization import Optimization

ENTRY_POINT_GROUP = "hasten.optimizations"


@cache
def catalogue() -> dict[str, type[Optimization]]:
    """Every optimization that can be found: name -> class, sorted by name.

    Raises:
        PlanError: A registered entry point cannot be loaded, is no optimization, or takes a name that is taken.
    """
    found: dict[str, type[Optimization]] = {}
    for module in pkgutil.iter_modules(__path__):
        if module.ispkg:  # parts that optimizations share
            continue
        content = importlib.import_module(f"{__name__}.{module.name}")
        for item in vars(content).values():
            if isinstance(item, type) and issubclass(item, Optimization) and item.__module__ == content.__name__:
                found[item.card.name] = item
    for point, kind in load_entry_points(entry_points(group=ENTRY_POINT_GROUP)):
        if kind.card.name in found:
            raise PlanError(f"The entry point `{point.name}` takes the name `{kind.card.name}`, which exists already.")
        found[kind.card.name] = kind
    return dict(sorted(found.items()))


@cache
def measured() -> dict[str, Any]:
    """What recorded runs of this project saw: name -> `measured` (rows, or None) and `why_not_measured`.

    Tunings, and single techniques on jobs made for them. Read from `measured.json`, which `python -m benchmarks.tables`
    writes from benchmarks/results.
    """
    table: dict[str, Any] = json.loads((files(__name__) / "measured.json").read_text(encoding="utf-8"))
    return dict(table["optimizations"])


def load_entry_points(points: Iterable[EntryPoint]) -> list[tuple[EntryPoint, type[Optimization]]]:
    """Load registered optimizations. Raises PlanError naming the entry point that is wrong."""
    loaded = []
    for point in points:
        try:
            kind = point.load()
        except Exception as error:
            seen = f"{type(error).__name__}: {error}"
            raise PlanError(f"The entry point `{point.name} = {point.value}` cannot be loaded: {seen}") from error
        if not (isinstance(kind, type) and issubclass(kind, Optimization) and isinstance(getattr(kind, "card", None), Card)):
            raise PlanError(f"The entry point `{point.name} = {point.value}` is no Optimization with a card.")
        loaded.append((point, kind))
    return loaded
