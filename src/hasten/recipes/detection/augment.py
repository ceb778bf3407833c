"""Augmentation: mosaic, scale and shift, mirroring and colour, at the price of one decoded picture a sample.

A mosaic shows parts of four pictures. The usual way decodes three more pictures for each sample. Here a sample only
*draws* what is to happen to it (`Draw`, in the random transform, so that it depends on seed, epoch and index alone), and
the batch's collate puts the picture together from those that are in the batch anyway. So a sample costs one decoding,
kept samples serve as partners, and the number of workers changes nothing.

The geometry is that of YOLO detectors (Jocher 2020, YOLOv5): the four pictures meet in one point with a corner each, all at
one scale; a picture alone is scaled and shifted about the middle. Colour is changed in HSV by tables.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from hasten.recipes.pictures import PADDING, Picture, opencv

Boxes: TypeAlias = npt.NDArray[np.float32]
Classes: TypeAlias = npt.NDArray[np.int64]

MIN_AREA_FRAC = 0.1
"""The least share of a box that must stay visible: what is left of less is no example of its class (as YOLOv5)."""
MIN_SIDE = 2.0
"""The least width and height of a box in pixels (as YOLOv5)."""


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """What may happen to a picture, and how often. The amounts are YOLOv5's for training from scratch.

    Attributes:
        mosaic_frac: Share of the samples that become mosaics; 0 is off.
        scale_frac: The scale is drawn from 1 - this to 1 + this; 0 is off, below 1.
        shift_frac: A picture alone is moved by up to this share of the side, each way; 0 is off.
        mirror_frac: Share of the samples that are mirrored left to right; 0 is off.
        upside_down_frac: Share of the samples that are mirrored top to bottom; 0 is off.
        hue_frac: The hue is multiplied by 1 - this to 1 + this; 0 is off.
        saturation_frac: As `hue_frac`, for the saturation.
        value_frac: As `hue_frac`, for the brightness.
    """

    mosaic_frac: float = 0.5
    scale_frac: float = 0.5
    shift_frac: float = 0.1
    mirror_frac: float = 0.5
    upside_down_frac: float = 0.0
    hue_frac: float = 0.015
    saturation_frac: float = 0.7
    value_frac: float = 0.4

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 <= value <= 1 or (name == "scale_frac" and value == 1):
                raise ValueError(f"{name} must be from 0 to {'below 1' if name == 'scale_frac' else '1'}, not {value!r}")


class Draw(NamedTuple):
    """What was drawn for one sample.

    Attributes:
        mosaic: Whether it becomes a mosaic.
        partners: Which other samples of the batch take part, as shares (0 to below 1) of their number.
        middle: Where the four meet: x and y, as shares of the side.
        scale: How much larger the pictures become.
        shift: Where a picture alone is moved: x and y, as shares of the side.
        mirror: Whether left and right change places.
        upside_down: Whether top and bottom do.
        gains: What hue, saturation and value are multiplied by.
    """

    mosaic: bool
    partners: tuple[float, float, float]
    middle: tuple[float, float]
    scale: float
    shift: tuple[float, float]
    mirror: bool
    upside_down: bool
    gains: tuple[float, float, float]


class Tile(NamedTuple):
    """Where one picture comes to lie.

    Attributes:
        left: Of the scaled picture in the square, in pixels; may lie outside, as may top.
        top: See left.
        width: Of the scaled picture.
        height: Of the scaled picture.
        region: The part of the square in which it is seen: left, top, right, bottom.
    """

    left: int
    top: int
    width: int
    height: int
    region: tuple[int, int, int, int]

    @property
    def seen(self) -> tuple[int, int, int, int]:
        """The part of the square that the picture fills: left, top, right, bottom; empty where right <= left or so."""
        left, top, right, bottom = self.region
        return (
            max(left, self.left),
            max(top, self.top),
            min(right, self.left + self.width),
            min(bottom, self.top + self.height),
        )


def draw(settings: Augmentation) -> Draw:
    """Draw what happens to a sample from Python's generator, which the loop seeds; always as many numbers."""
    return Draw(
        mosaic=_chance(settings.mosaic_frac),
        partners=(_between(0, 1), _between(0, 1), _between(0, 1)),
        middle=(_between(0.25, 0.75), _between(0.25, 0.75)),
        scale=_around_one(settings.scale_frac),
        shift=(_between(-1, 1) * settings.shift_frac, _between(-1, 1) * settings.shift_frac),
        mirror=_chance(settings.mirror_frac),
        upside_down=_chance(settings.upside_down_frac),
        gains=(
            _around_one(settings.hue_frac),
            _around_one(settings.saturation_frac),
            _around_one(settings.value_frac),
        ),
    )


def partners(drawn: Draw, at: int, count: int) -> list[int]:
    """Which samples of a batch a sample is made of: itself alone, or itself and three others.

    Args:
        drawn: What was drawn for it.
        at: Its place in the batch.
        count: Samples in the batch; with few of them one may take part more than once.
    """
    if not drawn.mosaic:
        return [at]
    others = max(count - 1, 1)
    return [at, *((at + 1 + int(share * others)) % count for share in drawn.partners)]


def tiles(drawn: Draw, sizes: Sequence[tuple[int, int]], side: int) -> list[Tile]:
    """Where the pictures of a sample come to lie.

    Args:
        drawn: What was drawn for the sample.
        sizes: Width and height of its one or four pictures.
        side: Of the square in pixels.
    """
    scaled = [(max(1, round(width * drawn.scale)), max(1, round(height * drawn.scale))) for width, height in sizes]
    if not drawn.mosaic:
        (width, height), (x, y) = scaled[0], drawn.shift
        left, top = (side - width) // 2 + round(x * side), (side - height) // 2 + round(y * side)
        return [Tile(left, top, width, height, (0, 0, side, side))]
    x, y = (round(share * side) for share in drawn.middle)
    regions = [(0, 0, x, y), (x, 0, side, y), (0, y, x, side), (x, y, side, side)]
    placed = []
    for at, ((width, height), region) in enumerate(zip(scaled, regions, strict=True)):
        left, top = (x if at % 2 else x - width), (y if at >= 2 else y - height)
        placed.append(Tile(left, top, width, height, region))
    return placed


def compose(samples: Sequence[dict[str, Any]], at: int, out: Picture) -> tuple[Boxes, Classes]:
    """Put one sample of a batch together as its `draw` says.

    Args:
        samples: The batch: `picture` uint8 [side, side, 3], `inside` (the part of it that is no padding), `boxes` float32
            [n, 4], `classes` int64 [n], `draw`. They stay as they are.
        at: Which of them.
        out: `uint8 [side, side, 3]`, contiguous; takes the picture.

    Returns:
        The boxes float32 [m, 4], in pixels, within the square; and their classes.
    """
    drawn: Draw = samples[at]["draw"]
    side = out.shape[0]
    chosen = [samples[other] for other in partners(drawn, at, len(samples))]
    insides = [[int(edge) for edge in sample["inside"]] for sample in chosen]
    placed = tiles(drawn, [(right - left, bottom - top) for left, top, right, bottom in insides], side)
    canvas: Picture = np.full((side, side, 3), PADDING, np.uint8)
    all_boxes: list[Boxes] = []
    all_classes: list[Classes] = []
    for sample, inside, tile in zip(chosen, insides, placed, strict=True):
        left, top, right, bottom = inside
        paint(canvas, sample["picture"][top:bottom, left:right], tile)
        moved, kept = move(sample["boxes"], inside, tile)
        all_boxes.append(moved)
        all_classes.append(sample["classes"][kept])
    boxes = np.concatenate(all_boxes)
    canvas, boxes = mirrored(canvas, boxes, left_right=drawn.mirror, top_bottom=drawn.upside_down)
    recolour(canvas, drawn.gains, out)
    return boxes, np.concatenate(all_classes)


def paint(canvas: Picture, picture: Picture, tile: Tile) -> None:
    """Draw a scaled picture into its part of the canvas."""
    left, top, right, bottom = tile.seen
    if right <= left or bottom <= top:
        return
    if picture.shape[:2] != (tile.height, tile.width):
        cv2 = opencv()
        picture = cv2.resize(picture, (tile.width, tile.height), interpolation=cv2.INTER_LINEAR)
    canvas[top:bottom, left:right] = picture[top - tile.top : bottom - tile.top, left - tile.left : right - tile.left]


def move(boxes: Boxes, inside: Sequence[int], tile: Tile) -> tuple[Boxes, npt.NDArray[np.bool_]]:
    """Boxes of a picture where it comes to lie, cut at the edges; what is hardly seen any more is left out.

    Args:
        boxes: `float32 [n, 4]`, in pixels of the picture with its padding.
        inside: The part of the picture that is no padding: left, top, right, bottom.
        tile: Where that part comes to lie.

    Returns:
        The boxes that are left, `float32 [m, 4]`; and which those are, `bool [n]`.
    """
    left, top, right, bottom = inside
    factors = np.array([tile.width / (right - left), tile.height / (bottom - top)] * 2, np.float32)
    moved = (boxes - np.array([left, top] * 2, np.float32)) * factors + np.array([tile.left, tile.top] * 2, np.float32)
    return cut(moved, tile.seen)


def cut(boxes: Boxes, region: tuple[int, int, int, int]) -> tuple[Boxes, npt.NDArray[np.bool_]]:
    """Boxes cut at the edges of a region, without those of which hardly anything is left.

    Returns:
        The boxes that are left, `float32 [m, 4]`; and which those are, `bool [n]`.
    """
    left, top, right, bottom = region
    if right <= left or bottom <= top:
        return boxes[:0], np.zeros(len(boxes), bool)
    inner = np.clip(boxes, np.array([left, top] * 2, np.float32), np.array([right, bottom] * 2, np.float32))
    sides, before = inner[:, 2:] - inner[:, :2], boxes[:, 2:] - boxes[:, :2]
    kept = (sides >= MIN_SIDE).all(axis=1) & (sides.prod(axis=1) >= MIN_AREA_FRAC * before.prod(axis=1))
    return inner[kept], kept


def mirrored(picture: Picture, boxes: Boxes, *, left_right: bool, top_bottom: bool) -> tuple[Picture, Boxes]:
    """A picture and its boxes with sides exchanged, in memory of their own where anything changes."""
    if not (left_right or top_bottom):
        return picture, boxes
    height, width = picture.shape[:2]
    picture = opencv().flip(picture, -1 if left_right and top_bottom else int(left_right))
    boxes = boxes.copy()
    if left_right:
        boxes[:, [0, 2]] = width - boxes[:, [2, 0]]
    if top_bottom:
        boxes[:, [1, 3]] = height - boxes[:, [3, 1]]
    return picture, boxes


def recolour(picture: Picture, gains: tuple[float, float, float], out: Picture) -> None:
    """Multiply hue, saturation and value of a picture, into `out` (contiguous, of its shape, not itself)."""
    if gains == (1.0, 1.0, 1.0):
        out[:] = picture
        return
    cv2 = opencv()
    levels = np.arange(256, dtype=np.float32)
    hue = (levels * gains[0]) % 180  # OpenCV's hues go from 0 to 179
    saturation, value = np.clip(levels * gains[1], 0, 255), np.clip(levels * gains[2], 0, 255)
    table = np.stack([hue, saturation, value], axis=-1).astype(np.uint8)[None]
    changed = cv2.LUT(cv2.cvtColor(picture, cv2.COLOR_RGB2HSV), table)
    cv2.cvtColor(changed, cv2.COLOR_HSV2RGB, dst=out)


def _between(low: float, high: float) -> float:
    return random.uniform(low, high)  # noqa: S311  chance for data, not for secrets


def _around_one(spread: float) -> float:
    return 1 + spread * _between(-1, 1)


def _chance(share: float) -> bool:
    return _between(0, 1) < share
