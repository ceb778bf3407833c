"""Detection's data as it is usually written, and as its owner had it: the baseline to measure against.

What a tired person leaves in: every visit opens and decodes its picture anew, and three more for a mosaic; Pillow resizes
them twice; boxes are moved one at a time in Python; colours are changed by floating-point arithmetic on whole pictures; and
the host makes floats of all pixels, which then travel at four times the size. What comes out is distributed as in
`hasten.recipes.detection.data`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.utils.data import Dataset

from hasten.recipes.detection.augment import MIN_AREA_FRAC, MIN_SIDE, Augmentation, Draw, Tile, draw, tiles
from hasten.recipes.detection.data import Batch
from hasten.recipes.detection.labels import Item
from hasten.recipes.needed import needed
from hasten.recipes.pictures import PADDING, Picture, read_picture

NaiveSample: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""A picture float32 [3, S, S] from 0 to 1, and its targets float32 [n, 5]: class, left, top, right, bottom."""


class NaiveDetectionData(Dataset[NaiveSample]):
    """Labelled pictures, each made ready anew at every visit.

    Args:
        items: What `read_labels` gave.
        size: Side of the square pictures in pixels.
        augmentation: What may happen to them; None is off, for held-out data.
    """

    def __init__(self, items: Sequence[Item], size: int, augmentation: Augmentation | None = None) -> None:
        self.items, self.size, self.augmentation = items, size, augmentation

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> NaiveSample:
        if self.augmentation is None:
            drawn = draw(Augmentation(mosaic_frac=0, scale_frac=0, shift_frac=0, mirror_frac=0))
            canvas, boxes = self._composed([index], drawn._replace(gains=(1.0, 1.0, 1.0)))
        else:
            drawn = draw(self.augmentation)
            chosen = [index]
            if drawn.mosaic:
                chosen += [random.randrange(len(self.items)) for _ in range(3)]  # noqa: S311  chance for data
            canvas, boxes = self._composed(chosen, drawn)
        image = torch.from_numpy(canvas.astype(np.float32) / 255.0).permute(2, 0, 1).contiguous()
        return image, torch.tensor(boxes, dtype=torch.float32).reshape(-1, 5)

    def _composed(self, chosen: list[int], drawn: Draw) -> tuple[Picture, list[list[float]]]:
        loaded = [self._load(index) for index in chosen]
        placed = tiles(drawn, [(picture.width, picture.height) for picture, _ in loaded], self.size)
        canvas: Picture = np.full((self.size, self.size, 3), PADDING, dtype=np.uint8)
        found: list[list[float]] = []
        for (picture, boxes), tile in zip(loaded, placed, strict=True):
            scaled = np.array(picture.resize((tile.width, tile.height), needed("PIL.Image").Resampling.BILINEAR))
            left, top, right, bottom = tile.seen
            if right > left and bottom > top:
                part = scaled[top - tile.top : bottom - tile.top, left - tile.left : right - tile.left]
                canvas[top:bottom, left:right] = part
            for number, x1, y1, x2, y2 in boxes:
                wide, high = tile.width / picture.width, tile.height / picture.height
                moved = [x1 * wide + tile.left, y1 * high + tile.top, x2 * wide + tile.left, y2 * high + tile.top]
                seen = _cut(moved, tile)
                if seen is not None:
                    found.append([number, *seen])
        if drawn.mirror:
            canvas = canvas[:, ::-1]
            found = [[number, self.size - x2, y1, self.size - x1, y2] for number, x1, y1, x2, y2 in found]
        if drawn.upside_down:
            canvas = canvas[::-1]
            found = [[number, x1, self.size - y2, x2, self.size - y1] for number, x1, y1, x2, y2 in found]
        return _recoloured(canvas, drawn.gains), found

    def _load(self, index: int) -> tuple[Any, list[list[float]]]:
        """A picture at the size of the square, by Pillow, and its boxes: class, left, top, right, bottom."""
        item = self.items[index]
        opened = _opened(item.path)
        scale = self.size / max(opened.width, opened.height)
        small = (max(1, round(opened.width * scale)), max(1, round(opened.height * scale)))
        boxes = []
        for box, number in zip(item.boxes.tolist(), item.classes.tolist(), strict=True):
            boxes.append([number, *(edge * scale for edge in box)])
        return opened.resize(small, needed("PIL.Image").Resampling.BILINEAR), boxes


def naive_collate(samples: list[NaiveSample]) -> Batch:
    """Stack the pictures, float32 [batch, 3, S, S], and put the row in the batch before each target."""
    targets = []
    for row, (_, boxes) in enumerate(samples):
        targets += [torch.cat([torch.tensor([float(row)]), box]) for box in boxes]
    images = torch.stack([image for image, _ in samples])
    return Batch(images, torch.stack(targets) if targets else torch.zeros((0, 6)))


def _cut(box: list[float], tile: Tile) -> list[float] | None:
    """A box cut at the edges of where its picture is seen; None where hardly anything of it is left."""
    left, top, right, bottom = tile.seen
    x1, y1 = min(max(box[0], left), right), min(max(box[1], top), bottom)
    x2, y2 = min(max(box[2], left), right), min(max(box[3], top), bottom)
    wide, high = x2 - x1, y2 - y1
    before = (box[2] - box[0]) * (box[3] - box[1])
    return [x1, y1, x2, y2] if min(wide, high) >= MIN_SIDE and wide * high >= MIN_AREA_FRAC * before else None


def _recoloured(canvas: Picture, gains: tuple[float, float, float]) -> Picture:
    if gains == (1.0, 1.0, 1.0):
        return canvas
    image = needed("PIL.Image")
    hsv = np.array(image.fromarray(np.ascontiguousarray(canvas)).convert("HSV"), dtype=np.float32)
    hsv[..., 0] = (hsv[..., 0] * gains[0]) % 256
    hsv[..., 1] = np.clip(hsv[..., 1] * gains[1], 0, 255)
    hsv[..., 2] = np.clip(hsv[..., 2] * gains[2], 0, 255)
    channels = [image.fromarray(np.ascontiguousarray(hsv[..., at].astype(np.uint8))) for at in range(3)]
    return np.array(image.merge("HSV", channels).convert("RGB"))


def _opened(path: Path) -> Any:
    """A picture as Pillow opens it, upright."""
    image, operations = needed("PIL.Image"), needed("PIL.ImageOps")
    if path.suffix.lower() == ".npy":
        return image.fromarray(read_picture(path))
    with image.open(path) as opened:
        return operations.exif_transpose(opened).convert("RGB")
