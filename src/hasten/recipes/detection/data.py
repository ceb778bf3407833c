"""Samples and batches for detection: read by path, decoded and letterboxed once, cached, and composed in the batch.

    data = DetectionData(labelled.items)         a sample is a path with its labels
    sample = decode(data[0], size)               the job's deterministic transform: its result can be cached
    sample = augmented(sample, Augmentation())   its random transform: only draws parameters
    batch = collate(samples)                     composes mosaics and stacks

A cached sample is a dict of plain arrays: `image` uint8 [S, S, 3], `boxes` float32 [n, 4] (left, top, right, bottom, in
its pixels), `classes` int64 [n] and `inside` int32 [4] (the part of the image without padding).
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
    """Images and their targets.

    Attributes:
        images: `uint8 [batch, 3, S, S]`, RGB, in channels-last memory format; float32 from 0 to 1 in the naive form.
        targets: `float32 [boxes, 6]`: row in the batch, class, left, top, right, bottom in pixels; sorted by row.
    """

    images: torch.Tensor
    targets: torch.Tensor


class DetectionData(Dataset[Sample]):
    """Labelled images, not yet read: `path` (text), `boxes` float32 [n, 4] in pixels of the file, `classes` int64 [n].

    Args:
        items: The items of a `Labelled` returned by `read_labels`.
    """

    def __init__(self, items: Sequence[Item]) -> None:
        self.items = tuple(items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Sample:
        item = self.items[index]
        return {"path": str(item.path), "boxes": item.boxes, "classes": item.classes}


def decode(sample: Sample, size: int) -> Sample:
    """Read and decode a sample's image and fit it into a square.

    If an image turns out to be damaged after an intact header, it is replaced by a grey square without objects, with a
    warning that names the file: one bad file does not end a run. A *missing* file does end the run, since more are likely to
    be missing.

    Args:
        sample: A sample of `DetectionData`.
        size: Side of the square in pixels.

    Returns:
        `image`, `boxes`, `classes` and `inside`, as described for this module.

    Raises:
        DataError: The file is missing.
    """
    boxes, classes = sample["boxes"], sample["classes"]
    try:
        image = read_picture(Path(sample["path"]))
    except BadFileError as error:
        if not error.path.is_file():
            raise
        warnings.warn(f"{error} It is replaced by a grey image.", stacklevel=2)
        image, boxes, classes = np.full((size, size, 3), PADDING, np.uint8), boxes[:0], classes[:0]
    height, width = image.shape[:2]
    square, scale, (left, top) = letterbox(image, size)
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
    """Return a decoded sample with its random parameters under `draw`; the original sample is not modified."""
    return {**sample, "draw": draw(settings)}


def collate(samples: list[Sample]) -> Batch:
    """Stack decoded samples into a batch; samples with random parameters are composed from the images of the batch."""
    side = samples[0]["picture"].shape[0]
    pixels = np.empty((len(samples), side, side, 3), np.uint8)
    rows = []
    for row, sample in enumerate(samples):
        if "draw" in sample:
            boxes, classes = compose(samples, row, pixels[row])
        else:
            boxes, classes = sample["boxes"], sample["classes"]
            pixels[row] = sample["picture"]
        rows.append(target_rows(row, boxes, classes))
    return Batch(torch.from_numpy(pixels).permute(0, 3, 1, 2), torch.from_numpy(np.concatenate(rows)))


def target_rows(row: int, boxes: Any, classes: Any) -> Any:
    """Return the targets of one image, `float32 [n, 6]`: its row in the batch and the class, followed by the box."""
    rows = np.empty((len(boxes), 6), np.float32)
    rows[:, 0], rows[:, 1], rows[:, 2:] = row, classes, boxes
    return rows
