"""Detection's samples and batches: read by path, decoded and letterboxed once, kept, composed in the batch.

    data = DetectionData(labelled.items)         a sample is a path with its labels
    sample = decode(data[0], size)               the job's deterministic transform: what caches keep
    sample = augmented(sample, Augmentation())   its random transform: only draws
    batch = collate(samples)                     composes mosaics, stacks

What a cache keeps is a dict of plain arrays: `picture` uint8 [S, S, 3], `boxes` float32 [n, 4] (left, top, right, bottom, in
its pixels), `classes` int64 [n] and `inside` int32 [4] (the part of the picture that is no padding).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch.utils.data import Dataset

from hasten.recipes.detection.augment import Augmentation, compose, draw
from hasten.recipes.detection.labels import Item
from hasten.recipes.findings import BadFileError
from hasten.recipes.pictures import PADDING, letterbox, read_picture

Sample: TypeAlias = dict[str, Any]


class Batch(NamedTuple):
    """Pictures and what is on them.

    Attributes:
        images: `uint8 [batch, 3, S, S]`, RGB, each pixel's colours together in memory (channels last); float32 from 0 to 1
            in the naive form.
        targets: `float32 [boxes, 6]`: row in the batch, class, left, top, right, bottom, in pixels; sorted by row.
    """

    images: torch.Tensor
    targets: torch.Tensor


class DetectionData(Dataset[Sample]):
    """Labelled pictures, not yet read: `path` (text), `boxes` float32 [n, 4] in pixels of the file, `classes` int64 [n].

    Args:
        items: What `read_labels` gave.
    """

    def __init__(self, items: Sequence[Item]) -> None:
        self.items = tuple(items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Sample:
        item = self.items[index]
        return {"path": str(item.path), "boxes": item.boxes, "classes": item.classes}


def decode(sample: Sample, size: int) -> Sample:
    """Read and decode a sample's picture and fit it into a square.

    A picture that turns out to be damaged, behind a sound header, becomes a grey square without objects, with a warning
    that names it: one bad file does not end a run. A picture that is *gone* does, since more will be.

    Args:
        sample: What `DetectionData` gives.
        size: The square's side in pixels.

    Returns:
        `picture`, `boxes`, `classes` and `inside`, as the module says.

    Raises:
        DataError: The file is missing.
    """
    boxes, classes = sample["boxes"], sample["classes"]
    try:
        picture = read_picture(Path(sample["path"]))
    except BadFileError as error:
        if not error.path.is_file():
            raise
        warnings.warn(f"{error} A grey picture takes its place.", stacklevel=2)
        picture, boxes, classes = np.full((size, size, 3), PADDING, np.uint8), boxes[:0], classes[:0]
    height, width = picture.shape[:2]
    square, scale, (left, top) = letterbox(picture, size)
    right, bottom = left + max(1, round(width * scale)), top + max(1, round(height * scale))
    moved = boxes * np.float32(scale) + np.array([left, top] * 2, np.float32)
    moved = np.clip(moved, np.array([left, top] * 2, np.float32), np.array([right, bottom] * 2, np.float32))
    return {
        "picture": square,
        "boxes": moved.astype(np.float32, copy=False),
        "classes": classes,
        "inside": np.array([left, top, right, bottom], np.int32),
    }


def augmented(sample: Sample, settings: Augmentation) -> Sample:
    """A decoded sample and what was drawn for it (`draw`); the sample itself stays as it is."""
    return {**sample, "draw": draw(settings)}


def collate(samples: list[Sample]) -> Batch:
    """Make a batch of decoded samples, composing those for which something was drawn out of the batch's pictures."""
    side = samples[0]["picture"].shape[0]
    pixels = np.empty((len(samples), side, side, 3), np.uint8)
    rows = []
    for at, sample in enumerate(samples):
        if "draw" in sample:
            boxes, classes = compose(samples, at, pixels[at])
        else:
            boxes, classes = sample["boxes"], sample["classes"]
            pixels[at] = sample["picture"]
        rows.append(target_rows(at, boxes, classes))
    return Batch(torch.from_numpy(pixels).permute(0, 3, 1, 2), torch.from_numpy(np.concatenate(rows)))


def target_rows(at: int, boxes: Any, classes: Any) -> Any:
    """The targets of one picture: `float32 [n, 6]`, with its row in the batch and the classes before the boxes."""
    rows = np.empty((len(boxes), 6), np.float32)
    rows[:, 0], rows[:, 1], rows[:, 2:] = at, classes, boxes
    return rows
