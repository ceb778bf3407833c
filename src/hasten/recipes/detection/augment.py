"""Augmentation with mosaic, scale, shift, mirroring and colour, at the cost of one decoded image per sample.

A mosaic shows parts of four images. The usual implementation decodes three more images for each sample. Here a sample only
*draws* its random parameters (`Draw`, in the random transform, so they depend on seed, epoch and index alone), and the
collate function composes the image from those already in the batch. Each sample therefore costs one decode, cached samples
serve as partners, and the number of workers does not affect the result.

The geometry is that of YOLO detectors (Jocher 2020, YOLOv5): the four images of a mosaic share one scale and meet at one
point with a corner each. A single image is scaled and shifted around the centre. Colour is changed in HSV through tables.
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
"""Smallest fraction of a box's area that must stay visible; smaller remains are not a useful example (as in YOLOv5)."""
MIN_SIDE = 2.0
"""Smallest width and height of a box in pixels (as in YOLOv5)."""


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Kinds and strengths of augmentation. The defaults are YOLOv5's for training from scratch.

    Attributes:
        mosaic_frac: Fraction of samples that become mosaics; 0 is off.
        scale_frac: The scale is drawn from 1 - this to 1 + this; 0 is off, must be below 1.
        shift_frac: A single image is shifted by up to this fraction of the side in each direction; 0 is off.
        mirror_frac: Fraction of samples mirrored left to right; 0 is off.
        upside_down_frac: Fraction of samples mirrored top to bottom; 0 is off.
        hue_frac: The hue is multiplied by 1 - this to 1 + this; 0 is off.
        saturation_frac: Like `hue_frac`, for the saturation.
        value_frac: Like `hue_frac`, for the brightness.
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
    """Random parameters of one sample.

    Attributes:
        mosaic: Whether the sample becomes a mosaic.
        partners: Other samples of the batch to use, as fractions of their number (0 to below 1).
        middle: Where the four images meet: x and y, as fractions of the side.
        scale: Scale factor of the images.
        shift: Shift of a single image: x and y, as fractions of the side.
        mirror: Whether to mirror left to right.
        upside_down: Whether to mirror top to bottom.
        gains: Factors of hue, saturation and value.
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
    """Placement of one image in the square.

    Attributes:
        left: Left edge of the scaled image in the square, in pixels; may be outside the square, like top.
        top: Top edge, likewise.
        width: Width of the scaled image.
        height: Height of the scaled image.
        region: Part of the square reserved for this image: left, top, right, bottom.
    """

    left: int
    top: int
    width: int
    height: int
    region: tuple[int, int, int, int]

    @property
    def seen(self) -> tuple[int, int, int, int]:
        """The part of the square that the image covers: left, top, right, bottom; empty if it has no area."""
        left, top, right, bottom = self.region
        return (
            max(left, self.left),
            max(top, self.top),
            min(right, self.left + self.width),
            min(bottom, self.top + self.height),
        )


def draw(settings: Augmentation) -> Draw:
    """Draw a sample's parameters from Python's generator, which the loop seeds. The count of draws is fixed."""
    return Draw(
        mosaic=_happens(settings.mosaic_frac),
        partners=(_between(0, 1), _between(0, 1), _between(0, 1)),
        middle=(_between(0.25, 0.75), _between(0.25, 0.75)),
        scale=_around_one(settings.scale_frac),
        shift=(_between(-1, 1) * settings.shift_frac, _between(-1, 1) * settings.shift_frac),
        mirror=_happens(settings.mirror_frac),
        upside_down=_happens(settings.upside_down_frac),
        gains=(
            _around_one(settings.hue_frac),
            _around_one(settings.saturation_frac),
            _around_one(settings.value_frac),
        ),
    )


def partners(drawn: Draw, index: int, count: int) -> list[int]:
    """Return the indices of the samples that form one sample: itself, or itself and three others for a mosaic.

    Args:
        drawn: The sample's parameters.
        index: Its index in the batch.
        count: Number of samples in the batch. In small batches a sample may be used more than once.
    """
    if not drawn.mosaic:
        return [index]
    others = max(count - 1, 1)
    return [index, *((index + 1 + int(fraction * others)) % count for fraction in drawn.partners)]


def tiles(drawn: Draw, sizes: Sequence[tuple[int, int]], side: int) -> list[Tile]:
    """Return the placement of each image of a sample.

    Args:
        drawn: The sample's parameters.
        sizes: Width and height of its one or four images.
        side: Side of the square in pixels.
    """
    scaled = [(max(1, round(width * drawn.scale)), max(1, round(height * drawn.scale))) for width, height in sizes]
    if not drawn.mosaic:
        (width, height), (x, y) = scaled[0], drawn.shift
        left, top = (side - width) // 2 + round(x * side), (side - height) // 2 + round(y * side)
        return [Tile(left, top, width, height, (0, 0, side, side))]
    x, y = (round(fraction * side) for fraction in drawn.middle)
    regions = [(0, 0, x, y), (x, 0, side, y), (0, y, x, side), (x, y, side, side)]
    placed = []
    for index, ((width, height), region) in enumerate(zip(scaled, regions, strict=True)):
        left, top = (x if index % 2 else x - width), (y if index >= 2 else y - height)
        placed.append(Tile(left, top, width, height, region))
    return placed


def compose(samples: Sequence[dict[str, Any]], index: int, out: Picture) -> tuple[Boxes, Classes]:
    """Compose one sample of a batch according to its `draw`.

    Args:
        samples: The batch: `image` uint8 [side, side, 3], `inside` (its part without padding), `boxes` float32 [n, 4],
            `classes` int64 [n], `draw`. They are not modified.
        index: Index of the sample to compose.
        out: `uint8 [side, side, 3]`, contiguous; receives the image.

    Returns:
        The boxes float32 [m, 4] in pixels, within the square; and their classes.
    """
    drawn: Draw = samples[index]["draw"]
    side = out.shape[0]
    chosen = [samples[other] for other in partners(drawn, index, len(samples))]
    insides = [[int(edge) for edge in sample["inside"]] for sample in chosen]
    placed = tiles(drawn, [(right - left, bottom - top) for left, top, right, bottom in insides], side)
    canvas: Picture = np.full((side, side, 3), PADDING, np.uint8)
    all_boxes: list[Boxes] = []
    all_classes: list[Classes] = []
    for sample, inside, tile in zip(chosen, insides, placed, strict=True):
        left, top, right, bottom = inside
        paint(canvas, sample["picture"][top:bottom, left:right], tile)
        moved, mask = move(sample["boxes"], inside, tile)
        all_boxes.append(moved)
        all_classes.append(sample["classes"][mask])
    boxes = np.concatenate(all_boxes)
    canvas, boxes = mirrored(canvas, boxes, left_right=drawn.mirror, top_bottom=drawn.upside_down)
    recolour(canvas, drawn.gains, out)
    return boxes, np.concatenate(all_classes)


def paint(canvas: Picture, image: Picture, tile: Tile) -> None:
    """Draw a scaled image into its part of the canvas."""
    left, top, right, bottom = tile.seen
    if right <= left or bottom <= top:
        return
    if image.shape[:2] != (tile.height, tile.width):
        cv2 = opencv()
        image = cv2.resize(image, (tile.width, tile.height), interpolation=cv2.INTER_LINEAR)
    canvas[top:bottom, left:right] = image[top - tile.top : bottom - tile.top, left - tile.left : right - tile.left]


def move(boxes: Boxes, inside: Sequence[int], tile: Tile) -> tuple[Boxes, npt.NDArray[np.bool_]]:
    """Transform the boxes of an image to its placement, clip them, and drop those that are hardly visible.

    Args:
        boxes: `float32 [n, 4]`, in pixels of the padded image.
        inside: The part of the image without padding: left, top, right, bottom.
        tile: Placement of that part.

    Returns:
        The remaining boxes, `float32 [m, 4]`; and a mask of which remained, `bool [n]`.
    """
    left, top, right, bottom = inside
    factors = np.array([tile.width / (right - left), tile.height / (bottom - top)] * 2, np.float32)
    moved = (boxes - np.array([left, top] * 2, np.float32)) * factors + np.array([tile.left, tile.top] * 2, np.float32)
    return cut(moved, tile.seen)


def cut(boxes: Boxes, region: tuple[int, int, int, int]) -> tuple[Boxes, npt.NDArray[np.bool_]]:
    """Clip boxes to a region and drop those of which hardly anything remains.

    Returns:
        The remaining boxes, `float32 [m, 4]`; and a mask of which remained, `bool [n]`.
    """
    left, top, right, bottom = region
    if right <= left or bottom <= top:
        return boxes[:0], np.zeros(len(boxes), bool)
    inner = np.clip(boxes, np.array([left, top] * 2, np.float32), np.array([right, bottom] * 2, np.float32))
    sides, before = inner[:, 2:] - inner[:, :2], boxes[:, 2:] - boxes[:, :2]
    mask = (sides >= MIN_SIDE).all(axis=1) & (sides.prod(axis=1) >= MIN_AREA_FRAC * before.prod(axis=1))
    return inner[mask], mask


def mirrored(image: Picture, boxes: Boxes, *, left_right: bool, top_bottom: bool) -> tuple[Picture, Boxes]:
    """Mirror an image and its boxes. The results are copies if anything changes."""
    if not (left_right or top_bottom):
        return image, boxes
    height, width = image.shape[:2]
    image = opencv().flip(image, -1 if left_right and top_bottom else int(left_right))
    boxes = boxes.copy()
    if left_right:
        boxes[:, [0, 2]] = width - boxes[:, [2, 0]]
    if top_bottom:
        boxes[:, [1, 3]] = height - boxes[:, [3, 1]]
    return image, boxes


def recolour(image: Picture, gains: tuple[float, float, float], out: Picture) -> None:
    """Multiply the hue, saturation and value of an image, into `out` (contiguous, same shape, a different array)."""
    if gains == (1.0, 1.0, 1.0):
        out[:] = image
        return
    cv2 = opencv()
    levels = np.arange(256, dtype=np.float32)
    hue = (levels * gains[0]) % 180  # OpenCV hues range from 0 to 179
    saturation, value = np.clip(levels * gains[1], 0, 255), np.clip(levels * gains[2], 0, 255)
    table = np.stack([hue, saturation, value], axis=-1).astype(np.uint8)[None]
    changed = cv2.LUT(cv2.cvtColor(image, cv2.COLOR_RGB2HSV), table)
    cv2.cvtColor(changed, cv2.COLOR_HSV2RGB, dst=out)


def _between(low: float, high: float) -> float:
    return random.uniform(low, high)  # noqa: S311  used for data, not for security


def _around_one(spread: float) -> float:
    return 1 + spread * _between(-1, 1)


def _happens(fraction: float) -> bool:
    return _between(0, 1) < fraction
