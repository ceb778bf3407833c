"""The work that goes to other processes; it imports little, since each of them imports it at its start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from hasten.recipes.ocr.maps.make import make_maps
from hasten.recipes.ocr.maps.packed import pack
from hasten.recipes.ocr.maps.polygons import PolygonArray
from hasten.recipes.ocr.maps.settings import MapSettings

Item: TypeAlias = tuple[str, PolygonArray, tuple[int, int]]
"""A key of the cache, the polygons of a picture, and its height and width in pixels."""
Packed: TypeAlias = dict[str, bytes]
"""Packed maps by key."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """Pictures whose maps one worker makes at a time.

    Attributes:
        items: The pictures.
        settings: Of their maps.
    """

    items: tuple[Item, ...]
    settings: MapSettings


def make_task(task: Task) -> Packed:
    """The packed maps of a task's pictures."""
    return {key: pack(make_maps(polygons, size, task.settings), task.settings) for key, polygons, size in task.items}
