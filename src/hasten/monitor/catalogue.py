"""Discover samplers and sinks: modules of the folders `samplers/` and `sinks/`, and classes that other packages register."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from hasten.core.errors import HastenError
from hasten.monitor.metric import Card
from hasten.monitor.sink import SinkCard

SAMPLERS, SINKS = "hasten.samplers", "hasten.sinks"
"""Entry-point groups."""


@cache
def samplers() -> dict[str, type[Any]]:
    """Return all samplers, by name. Raises HastenError if a registered one cannot be used."""
    return _discovered("hasten.monitor.samplers", SAMPLERS, Card, "sample")


@cache
def sinks() -> dict[str, type[Any]]:
    """Return all sinks, by name. Raises HastenError if a registered one cannot be used."""
    return _discovered("hasten.monitor.sinks", SINKS, SinkCard, "write")


def _discovered(folder: str, group: str, card: type, method: str) -> dict[str, type[Any]]:
    """Return the classes with a card of this type, by the name on the card and sorted by it."""
    kinds: dict[str, type[Any]] = {}
    for module in pkgutil.iter_modules(importlib.import_module(folder).__path__):
        content = importlib.import_module(f"{folder}.{module.name}")
        for item in vars(content).values():
            if isinstance(item, type) and item.__module__ == content.__name__ and isinstance(vars(item).get("card"), card):
                kinds[item.card.name] = item  # type: ignore[attr-defined]  # a class with a card
    for point in entry_points(group=group):
        where = f"The entry point `{point.name} = {point.value}` of {group}"
        try:
            kind = point.load()
        except Exception as error:
            raise HastenError(f"{where} cannot be loaded: {type(error).__name__}: {error}") from error
        if not (isinstance(getattr(kind, "card", None), card) and callable(getattr(kind, method, None))):
            raise HastenError(f"{where} has no `card` of type {card.__name__}, or no method `{method}`.")
        if kind.card.name in kinds:
            raise HastenError(f"{where} uses the name `{kind.card.name}`, which already exists.")
        kinds[kind.card.name] = kind
    return dict(sorted(kinds.items()))
