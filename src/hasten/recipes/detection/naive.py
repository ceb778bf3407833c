"""The detection job as it is usually written: the baseline for measuring gains.

Each visit decodes its image again, and three more for a mosaic. Pillow resizes them twice. Boxes are moved one at a time in
Python. Colours are changed with floating-point arithmetic on whole images. The host converts images to floats, which are
four times as large to copy. Training computes all boxes. Anchors are assigned in loops over images and objects. The host
reads the loss at each update. A validation batch passes through the model twice. Model, data and loss are those of
`hasten.recipes.detection.job`.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.utils.data import Dataset

from hasten.core.job import Gathered, Job, Loss, Mean
from hasten.recipes.detection.assign import TINY, Alignment, Assigned, Look, alignment_of, overlaps_of
from hasten.recipes.detection.augment import MIN_AREA_FRAC, MIN_SIDE, Augmentation, Draw, Tile, draw, tiles
from hasten.recipes.detection.data import Batch
from hasten.recipes.detection.decode import Candidates, Floats, Suppression, candidates, decode_boxes, suppressed_by
from hasten.recipes.detection.job import METRIC, DetectionJob, boxes_and_scores, objects_of
from hasten.recipes.detection.labels import Item
from hasten.recipes.detection.losses import Parts, loss_parts
from hasten.recipes.detection.model import Output
from hasten.recipes.needed import needed
from hasten.recipes.pictures import PADDING, Picture, read_picture

NaiveSample: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""An image float32 [3, S, S] from 0 to 1, and its targets float32 [n, 5]: class, left, top, right, bottom."""


class NaiveDetectionJob(DetectionJob):
    """Object detection written naively. Put it before your own job: `class NaiveCoins(NaiveDetectionJob, Coins)`."""

    zero_grad_to_none = False
    read_every = Job.read_every
    light_predictions: ClassVar[bool] = False
    forms = (DetectionJob,)

    deterministic_transform = Job.deterministic_transform
    random_transform = Job.random_transform
    device_transform = Job.device_transform

    def train_data(self) -> Dataset[Any]:
        """Return the training images with their labels, decoded and augmented at each visit."""
        return NaiveDetectionData(self.labelled[0].items, self.size, self.augmentation)

    def valid_data(self) -> Dataset[Any]:
        """Return the validation images, decoded at each visit."""
        return NaiveDetectionData(self.labelled[1].items, self.size)

    def collate(self, samples: list[Any]) -> Batch:
        """Stack the images, float32 `[batch, 3, size, size]`, and concatenate their objects, `[objects, 6]`."""
        return naive_collate(samples)

    def parts(self, output: Output, targets: torch.Tensor) -> Parts:
        """Compute the parts of the loss."""
        return detection_loss_naive(output, targets)

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """Compute the loss: a sum over anchors divided by the sum of their target scores."""
        parts = self.parts(model(batch.images), batch.targets)
        return Loss(parts.total(), parts.weight)

    def metric(self, model: nn.Module, batch: Batch) -> Mapping[str, Mean | Gathered]:
        """Return the boxes of a validation batch with its objects."""
        best = candidates(*boxes_and_scores(model(batch.images)), self.suppression)
        boxes = suppress_naive(best, self.suppression)
        return {METRIC: Gathered(list(zip(boxes, objects_of(batch), strict=True)))}


class NaiveDetectionData(Dataset[NaiveSample]):
    """Labelled images, decoded and augmented again at every visit.

    Args:
        items: The items of a `Labelled` returned by `read_labels`.
        size: Side of the square images in pixels.
        augmentation: Augmentation to apply; None is off, for validation data.
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
        placed = tiles(drawn, [(image.width, image.height) for image, _ in loaded], self.size)
        canvas: Picture = np.full((self.size, self.size, 3), PADDING, dtype=np.uint8)
        moved_boxes: list[list[float]] = []
        for (image, boxes), tile in zip(loaded, placed, strict=True):
            scaled = np.array(image.resize((tile.width, tile.height), needed("PIL.Image").Resampling.BILINEAR))
            left, top, right, bottom = tile.seen
            if right > left and bottom > top:
                part = scaled[top - tile.top : bottom - tile.top, left - tile.left : right - tile.left]
                canvas[top:bottom, left:right] = part
            for number, x1, y1, x2, y2 in boxes:
                wide, high = tile.width / image.width, tile.height / image.height
                moved = [x1 * wide + tile.left, y1 * high + tile.top, x2 * wide + tile.left, y2 * high + tile.top]
                visible = _cut(moved, tile)
                if visible is not None:
                    moved_boxes.append([number, *visible])
        if drawn.mirror:
            canvas = canvas[:, ::-1]
            moved_boxes = [[number, self.size - x2, y1, self.size - x1, y2] for number, x1, y1, x2, y2 in moved_boxes]
        if drawn.upside_down:
            canvas = canvas[::-1]
            moved_boxes = [[number, x1, self.size - y2, x2, self.size - y1] for number, x1, y1, x2, y2 in moved_boxes]
        return _recoloured(canvas, drawn.gains), moved_boxes

    def _load(self, index: int) -> tuple[Any, list[list[float]]]:
        """Load an image at the size of the square, with Pillow, and its boxes: class, left, top, right, bottom."""
        item = self.items[index]
        opened = _opened(item.path)
        scale = self.size / max(opened.width, opened.height)
        small = (max(1, round(opened.width * scale)), max(1, round(opened.height * scale)))
        boxes = []
        for box, number in zip(item.boxes.tolist(), item.classes.tolist(), strict=True):
            boxes.append([number, *(edge * scale for edge in box)])
        return opened.resize(small, needed("PIL.Image").Resampling.BILINEAR), boxes


def naive_collate(samples: list[NaiveSample]) -> Batch:
    """Stack the images, float32 [batch, 3, S, S], and prepend the row in the batch to each target."""
    targets = []
    for row, (_, boxes) in enumerate(samples):
        targets += [torch.cat([torch.tensor([float(row)]), box]) for box in boxes]
    images = torch.stack([image for image, _ in samples])
    return Batch(images, torch.stack(targets) if targets else torch.zeros((0, 6)))


def detection_loss_naive(output: Output, targets: torch.Tensor, settings: Alignment | None = None) -> Parts:
    """Compute the loss of a batch, with gradients through all boxes and a loop over images and objects."""
    boxes, scores = decode_boxes(output.distances, output.anchors), output.logits.float().sigmoid()

    def look(rows: torch.Tensor, places: torch.Tensor, classes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return scores[rows, places, classes], boxes[rows, places]

    assigned = assign_naive(look, output.anchors, targets, len(boxes), settings)
    return loss_parts(
        output, assigned, boxes[assigned.rows, assigned.places], output.distances[assigned.rows, assigned.places]
    )


@torch.no_grad()
def assign_naive(
    look: Look, anchors: torch.Tensor, targets: torch.Tensor, batch_size: int, settings: Alignment | None = None
) -> Assigned:
    """Choose the anchors of each object like `assign`, in loops over images and objects.

    Args:
        look: As in `assign`.
        anchors: As in `assign`.
        targets: As in `pad_truths`.
        batch_size: As in `pad_truths`.
        settings: Defaults to `Alignment()`.
    """
    settings = settings or Alignment()
    chosen: list[tuple[int, int, int, list[float], float]] = []
    for row in range(batch_size):
        objects = targets[targets[:, 0] == row]
        owners: dict[int, tuple[float, int]] = {}  # anchor -> overlap and index of the object that owns it
        aligned: list[dict[int, tuple[float, float]]] = []  # for each object: anchor -> alignment and overlap
        for number, one in enumerate(objects):
            aligned.append(_wanted(look, row, anchors, one, settings))
            for anchor, (_, overlap) in aligned[-1].items():
                if anchor not in owners or overlap > owners[anchor][0]:
                    owners[anchor] = overlap, number
        for number, one in enumerate(objects):
            owned = {anchor: two for anchor, two in aligned[number].items() if owners[anchor][1] == number}
            highest = max([settings.least_overlap, *(overlap for _, overlap in owned.values())])
            best = max([TINY, *(alignment for alignment, _ in owned.values())])
            for anchor, (alignment, _) in owned.items():
                chosen.append((row, anchor, int(one[1]), one[2:].tolist(), alignment / best * highest))
    chosen.sort(key=lambda entry: entry[:2])
    rows, places, classes, boxes, assigned = zip(*chosen, strict=True) if chosen else ((), (), (), (), ())
    return Assigned(
        torch.tensor(rows, dtype=torch.int64, device=anchors.device),
        torch.tensor(places, dtype=torch.int64, device=anchors.device),
        torch.tensor(classes, dtype=torch.int64, device=anchors.device),
        torch.tensor(boxes, dtype=torch.float32, device=anchors.device).reshape(-1, 4),
        torch.tensor(assigned, dtype=torch.float32, device=anchors.device),
    )


def suppress_naive(best: Candidates, settings: Suppression | None = None) -> list[Floats]:
    """Keep the best box of each object with NumPy: one loop over the classes, one over the boxes."""
    return suppressed_by(best, settings or Suppression(), _keep_naive)


def _cut(box: list[float], tile: Tile) -> list[float] | None:
    """Clip a box to the visible part of its image; None if hardly anything remains."""
    left, top, right, bottom = tile.seen
    x1, y1 = min(max(box[0], left), right), min(max(box[1], top), bottom)
    x2, y2 = min(max(box[2], left), right), min(max(box[3], top), bottom)
    wide, high = x2 - x1, y2 - y1
    before = (box[2] - box[0]) * (box[3] - box[1])
    return [x1, y1, x2, y2] if min(wide, high) >= MIN_SIDE and wide * high >= MIN_AREA_FRAC * before else None


def _recoloured(canvas: Picture, gains: tuple[float, float, float]) -> Picture:
    if gains == (1.0, 1.0, 1.0):
        return canvas
    pil = needed("PIL.Image")
    hsv = np.array(pil.fromarray(np.ascontiguousarray(canvas)).convert("HSV"), dtype=np.float32)
    hsv[..., 0] = (hsv[..., 0] * gains[0]) % 256
    hsv[..., 1] = np.clip(hsv[..., 1] * gains[1], 0, 255)
    hsv[..., 2] = np.clip(hsv[..., 2] * gains[2], 0, 255)
    channels = [pil.fromarray(np.ascontiguousarray(hsv[..., at].astype(np.uint8))) for at in range(3)]
    return np.array(pil.merge("HSV", channels).convert("RGB"))


def _opened(path: Path) -> Any:
    """Open an image with Pillow and rotate it upright."""
    pil, operations = needed("PIL.Image"), needed("PIL.ImageOps")
    if path.suffix.lower() == ".npy":
        return pil.fromarray(read_picture(path))
    with pil.open(path) as opened:
        return operations.exif_transpose(opened).convert("RGB")


def _wanted(
    look: Look, row: int, anchors: torch.Tensor, one: torch.Tensor, settings: Alignment
) -> dict[int, tuple[float, float]]:
    """Return the candidate anchors of one object of an image, each with its alignment and overlap."""
    box = one[2:]
    halves = (box[2:] - box[:2]).clamp(min=settings.least_side) / 2
    inside = ((anchors[:, :2] - (box[:2] + box[2:]) / 2).abs() < halves).all(dim=1)
    places = inside.nonzero()[:, 0]
    scores, boxes = look(torch.full_like(places, row), places, torch.full_like(places, int(one[1])))
    overlaps = overlaps_of(box, boxes)
    alignment = alignment_of(scores, overlaps, anchors[places], box, settings)
    best = alignment.argsort(descending=True, stable=True)[: settings.topk]
    return {int(places[at]): (float(alignment[at]), float(overlaps[at])) for at in best}


def _keep_naive(boxes: Floats, classes: npt.NDArray[np.int64], max_iou: float) -> npt.NDArray[np.bool_]:
    """Like `_keep`, class by class with NumPy."""
    keep = np.zeros(len(boxes), dtype=np.bool_)
    for one in np.unique(classes):
        left = np.flatnonzero(classes == one)
        while len(left):
            first, rest = left[0], left[1:]
            keep[first] = True
            left = rest[_iou_parts_below(boxes[first], boxes[rest], np.float32(max_iou))]
    return keep


def _iou_parts_below(box: Floats, others: Floats, limit: np.float32) -> npt.NDArray[np.bool_]:
    """Return whether the IoU with each of the others is at most `limit`, without a division by zero."""
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    both = np.where((sides > 0).all(axis=1), sides[:, 0] * sides[:, 1], np.float32(0))
    areas = (others[:, 2] - others[:, 0]) * (others[:, 3] - others[:, 1])
    area = (box[2] - box[0]) * (box[3] - box[1])
    below: npt.NDArray[np.bool_] = both <= limit * (area + areas - both)
    return below
