"""The points where an optimization may act on a live job, and reversible changes."""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable
from typing import Any, TypeAlias

Undo: TypeAlias = Callable[[], None]
"""Undoes a change."""


class Seam(enum.Enum):
    """Where an optimization may act, in the order a live job opens them."""

    ENVIRONMENT = "environment"
    PROCESS = "process"
    DATASET = "dataset"
    MODEL = "model"
    OPTIMIZER = "optimizer"
    LOADER = "loader"
    BATCH = "batch"
    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"
    AROUND = "around"


DATA_SEAMS = frozenset({Seam.DATASET, Seam.LOADER})
"""The seams that produce batches."""


def undo_nothing() -> None:
    """Do nothing: the undo of optimizations that only set environment variables, which end with the process."""


_COUNTING = threading.Lock()


def add_to(counters: dict[str, float], name: str, amount: float = 1) -> None:
    """Add to a counter, from any thread."""
    with _COUNTING:
        counters[name] = counters.get(name, 0) + amount


def replace_attribute(owner: Any, name: str, value: Any) -> Undo:
    """Set `owner.name` to `value`. The undo restores the old value."""
    old = getattr(owner, name)
    setattr(owner, name, value)

    def undo() -> None:
        setattr(owner, name, old)

    return undo


def append_to(items: list[Any], item: Any) -> Undo:
    """Append `item` to `items`. The undo removes exactly that item."""
    items.append(item)

    def undo() -> None:
        for position in range(len(items) - 1, -1, -1):
            if items[position] is item:
                del items[position]
                return

    return undo
