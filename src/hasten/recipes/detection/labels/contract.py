"""What reading labels gives, and what each format must offer to be read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from hasten.recipes.findings import Findings

MIN_SIDE = 1.0
"""Pixels that a box must have on each side within the picture: nothing is learned from less."""


class Box(NamedTuple):
    """A box in pixels of its picture: left, top, right, bottom; continuous, so the right is not a pixel's number."""

    left: float
    top: float
    right: float
    bottom: float


@dataclass(frozen=True)
class Item:
    """A picture and what is on it.

    Attributes:
        path: The picture's file.
        boxes: `float32 [n, 4]`: left, top, right, bottom, in pixels of the upright picture; within it, each at least a
            pixel wide and high.
        classes: `int64 [n]`: which class, counted from 0.
    """

    path: Path
    boxes: npt.NDArray[np.float32]
    classes: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Labelled:
    """Pictures with their labels.

    Attributes:
        classes: The names of the classes.
        items: The pictures that can be used, sorted by file name.
    """

    classes: tuple[str, ...]
    items: tuple[Item, ...]

    def only(self, names: Sequence[str]) -> Labelled:
        """The pictures of these file names (with or without ending), in this order; others are left out."""
        known = {item.path.stem: item for item in self.items} | {item.path.name: item for item in self.items}
        return Labelled(self.classes, tuple(known[name] for name in names if name in known))


class Label(NamedTuple):
    """One label as its file gives it, its box fitted to the picture.

    Attributes:
        name: The class.
        box: Where.
        line: In which line of the file it stands, or begins; None where the format has no lines.
    """

    name: str
    box: Box
    line: int | None


class LabelError(ValueError):
    """One label that cannot be used; its message is the reason, without a full stop."""


class Source(Protocol):
    """The labels of a data set, in one of the formats.

    Attributes:
        classes: The names of the classes, where the data set lists them; None where its labels alone tell.
    """

    classes: tuple[str, ...] | None

    def labels_of(self, picture: Path, size: tuple[int, int], findings: Findings) -> list[Label]:
        """The labels of one picture; called from several threads.

        Args:
            picture: Its file.
            size: Its height and width in pixels.
            findings: Takes the labels that cannot be used.

        Raises:
            BadFileError: The picture cannot be used: its labels are missing, unreadable, or another picture's.
        """
        ...

    def place_of(self, picture: Path) -> Path:
        """The file in which the labels of a picture stand."""
        ...

    def finish(self, findings: Findings) -> None:
        """Say what was not asked for: labels whose picture is missing."""
        ...


def number(value: Any) -> float:
    """A finite number.

    Raises:
        LabelError: It is none.
    """
    try:
        found = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found):
        raise LabelError(f"{_short(value)} is no number that a box can have")
    return found


def fitted(left: float, top: float, right: float, bottom: float, size: tuple[int, int]) -> Box:
    """A box cut at the edges of its picture.

    Args:
        left: In pixels, as are the others.
        top: Downward from the picture's upper edge.
        right: Greater than left.
        bottom: Greater than top.
        size: The picture's height and width.

    Raises:
        LabelError: It has no area, or less than a pixel of it lies within the picture.
    """
    height, width = size
    told = f"({left:g}, {top:g}) to ({right:g}, {bottom:g})"
    if not (right > left and bottom > top):
        raise LabelError(f"its box has no area: {told}")
    box = Box(max(left, 0.0), max(top, 0.0), min(right, float(width)), min(bottom, float(height)))
    if box.right <= box.left or box.bottom <= box.top:
        raise LabelError(f"its box {told} lies outside the picture of {width}x{height} pixels")
    if box.right - box.left < MIN_SIDE or box.bottom - box.top < MIN_SIDE:
        raise LabelError(f"less than a pixel of its box {told} lies within the picture of {width}x{height} pixels")
    return box


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 40 else f"{shown[:37]}..."
