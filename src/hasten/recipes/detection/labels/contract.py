"""The result of reading labels, and the protocol that each label format implements."""

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
"""Smallest side of a box within its image, in pixels; smaller boxes are useless for training."""
_ROUNDING = 1.5
"""How far a box may reach beyond its image without a remark, in pixels: VOC counts from 1, and fractions are rounded."""


class Box(NamedTuple):
    """A box in pixels of its image: left, top, right, bottom. Coordinates are continuous, not pixel indices."""

    left: float
    top: float
    right: float
    bottom: float


@dataclass(frozen=True)
class Item:
    """An image and its objects.

    Attributes:
        path: The image file.
        boxes: `float32 [n, 4]`: left, top, right, bottom, in pixels of the upright image; within it, each at least one pixel
            wide and high.
        classes: `int64 [n]`: class index, counted from 0.
    """

    path: Path
    boxes: npt.NDArray[np.float32]
    classes: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Labelled:
    """Images with their labels.

    Attributes:
        classes: The class names.
        items: The usable images, sorted by file name.
    """

    classes: tuple[str, ...]
    items: tuple[Item, ...]

    def only(self, names: Sequence[str]) -> Labelled:
        """Select the images with these file names (with or without suffix), in this order; unknown names are skipped."""
        known = {item.path.stem: item for item in self.items} | {item.path.name: item for item in self.items}
        return Labelled(self.classes, tuple(known[name] for name in names if name in known))


class Label(NamedTuple):
    """One label from a file, with its box clipped to the image.

    Attributes:
        name: The class name.
        box: The box.
        line: First line of the label in its file; None if the format has no lines.
        is_cut: Whether the box reached beyond the image.
    """

    name: str
    box: Box
    line: int | None
    is_cut: bool = False


class LabelError(ValueError):
    """A label that cannot be used; its message is the reason, without a full stop."""


class Source(Protocol):
    """The labels of a data set in one of the formats.

    Attributes:
        classes: The class names if the data set lists them; None if they follow only from the labels.
        understood: How the files are read, as a sentence.
    """

    classes: tuple[str, ...] | None
    understood: str

    def labels_of(self, image: Path, size: tuple[int, int], findings: Findings) -> list[Label]:
        """Return the labels of one image; called from several threads.

        Args:
            image: The image file.
            size: Its height and width in pixels.
            findings: Receives the labels that cannot be used.

        Raises:
            BadFileError: The image cannot be used: its labels are missing, unreadable, or belong to another image.
        """
        ...

    def place_of(self, image: Path) -> Path:
        """Return the file that contains the labels of an image."""
        ...

    def finish(self, findings: Findings) -> None:
        """Report what concerns all files: labels whose image is missing, and labels that are not used."""
        ...


def number(value: Any) -> float:
    """Convert a value to a finite number.

    Raises:
        LabelError: The value is not a finite number.
    """
    try:
        result = math.nan if isinstance(value, bool) or (isinstance(value, str) and "_" in value) else float(value)
    except (TypeError, ValueError, OverflowError):
        result = math.nan
    if not math.isfinite(result):
        raise LabelError(f"{_short(value)} is not a valid coordinate")
    return result


def label(name: str, edges: tuple[float, float, float, float], line: int | None, size: tuple[int, int]) -> Label:
    """Return a label with its box clipped to the image.

    Args:
        name: The class name.
        edges: Left, top, right and bottom of the box in pixels.
        line: First line of the label in its file; None if the format has no lines.
        size: The image's height and width.

    Raises:
        LabelError: The box has no area, or less than a pixel of it is within the image.
    """
    box = fitted(*edges, size)
    return Label(name, box, line, max(abs(edge - kept) for edge, kept in zip(edges, box, strict=True)) > _ROUNDING)


def fitted(left: float, top: float, right: float, bottom: float, size: tuple[int, int]) -> Box:
    """Clip a box to its image.

    Args:
        left: Left edge in pixels, like the others.
        top: Top edge, counted downward from the image's upper edge.
        right: Right edge, greater than left.
        bottom: Bottom edge, greater than top.
        size: The image's height and width.

    Raises:
        LabelError: The box has no area, or less than a pixel of it is within the image.
    """
    height, width = size
    description = f"({left:g}, {top:g}) to ({right:g}, {bottom:g})"
    if not (right > left and bottom > top):
        raise LabelError(f"its box has no area: {description}")
    box = Box(max(left, 0.0), max(top, 0.0), min(right, float(width)), min(bottom, float(height)))
    if box.right <= box.left or box.bottom <= box.top:
        raise LabelError(f"its box {description} is outside the image of {width}x{height} pixels")
    if box.right - box.left < MIN_SIDE or box.bottom - box.top < MIN_SIDE:
        raise LabelError(f"less than a pixel of its box {description} is within the image of {width}x{height} pixels")
    return box


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 40 else f"{shown[:37]}..."
