"""The detection job as it is usually written: the baseline that gains are measured against.

Each visit decodes its picture anew, and three more for a mosaic; Pillow resizes them twice; boxes are moved one at a time in
Python; colours are changed by floating-point arithmetic on whole pictures; the host makes floats, which travel at four times
the size. Training makes all boxes; anchors are chosen in loops over pictures and objects; the host reads the loss at each
update; and a held-out batch passes the model twice. Model, data and loss are those of `hasten.recipes.detection.job`.
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
"""A picture float32 [3, S, S] from 0 to 1, and its targets float32 [n, 5]: class, left, top, right, bottom."""


class NaiveDetectionJob(DetectionJob):
    """Object detection the slow way. Put it before a job of your own: `class NaiveCoins(NaiveDetectionJob, Coins)`."""

    zero_grad_to_none = False
    read_every = Job.read_every
    light_predictions: ClassVar[bool] = False
    forms = (DetectionJob,)

    deterministic_transform = Job.deterministic_transform
    random_transform = Job.random_transform
    device_transform = Job.device_transform

    def train_data(self) -> Dataset[Any]:
        """Pictures with their labels, decoded and augmented at each visit."""
        return NaiveDetectionData(self.labelled[0].items, self.size, self.augmentation)

    def valid_data(self) -> Dataset[Any]:
        """Held-out pictures, decoded at each visit."""
        return NaiveDetectionData(self.labelled[1].items, self.size)

    def collate(self, samples: list[Any]) -> Batch:
        """Stack pictures, float32 `[batch, 3, size, size]`, and lay the objects end to end, `[objects, 6]`."""
        return naive_collate(samples)

    def parts(self, output: Output, targets: torch.Tensor) -> Parts:
        """The parts of the loss."""
        return detection_loss_naive(output, targets)

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """The loss, as a sum over anchors by the scores they are asked for."""
        parts = self.parts(model(batch.images), batch.targets)
        return Loss(parts.total(), parts.weight)

    def metric(self, model: nn.Module, batch: Batch) -> Mapping[str, Mean | Gathered]:
        """Find the boxes of a held-out batch, beside its objects."""
        best = candidates(*boxes_and_scores(model(batch.images)), self.suppression)
        boxes = suppress_naive(best, self.suppression)
        return {METRIC: Gathered(list(zip(boxes, objects_of(batch), strict=True)))}


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


def detection_loss_naive(output: Output, targets: torch.Tensor, settings: Alignment | None = None) -> Parts:
    """The loss of a batch, with gradients through every box, and anchors chosen picture by picture and object by object."""
    boxes, scores = decode_boxes(output.distances, output.anchors), output.logits.float().sigmoid()

    def look(rows: torch.Tensor, places: torch.Tensor, classes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return scores[rows, places, classes], boxes[rows, places]

    asked = assign_naive(look, output.anchors, targets, len(boxes), settings)
    return loss_parts(output, asked, boxes[asked.rows, asked.places], output.distances[asked.rows, asked.places])


@torch.no_grad()
def assign_naive(
    look: Look, anchors: torch.Tensor, targets: torch.Tensor, batch_size: int, settings: Alignment | None = None
) -> Assigned:
    """Choose the anchors of each object as `assign` does, picture by picture and object by object.

    Args:
        look: As for `assign`.
        anchors: Likewise.
        targets: As for `pad_truths`.
        batch_size: Likewise.
        settings: As `Alignment` has it unless given.
    """
    settings = settings or Alignment()
    chosen: list[tuple[int, int, int, list[float], float]] = []
    for row in range(batch_size):
        objects = targets[targets[:, 0] == row]
        owners: dict[int, tuple[float, int]] = {}  # anchor -> the overlap and the number of the object that has it
        aligned: list[dict[int, tuple[float, float]]] = []  # per object, anchor -> alignment and overlap
        for number, one in enumerate(objects):
            aligned.append(_wanted(look, row, anchors, one, settings))
            for anchor, (_, overlap) in aligned[-1].items():
                if anchor not in owners or overlap > owners[anchor][0]:
                    owners[anchor] = overlap, number
        for number, one in enumerate(objects):
            mine = {anchor: two for anchor, two in aligned[number].items() if owners[anchor][1] == number}
            highest = max([settings.least_overlap, *(overlap for _, overlap in mine.values())])
            best = max([TINY, *(alignment for alignment, _ in mine.values())])
            for anchor, (alignment, _) in mine.items():
                chosen.append((row, anchor, int(one[1]), one[2:].tolist(), alignment / best * highest))
    chosen.sort(key=lambda entry: entry[:2])
    rows, places, classes, boxes, asked = zip(*chosen, strict=True) if chosen else ((), (), (), (), ())
    return Assigned(
        torch.tensor(rows, dtype=torch.int64, device=anchors.device),
        torch.tensor(places, dtype=torch.int64, device=anchors.device),
        torch.tensor(classes, dtype=torch.int64, device=anchors.device),
        torch.tensor(boxes, dtype=torch.float32, device=anchors.device).reshape(-1, 4),
        torch.tensor(asked, dtype=torch.float32, device=anchors.device),
    )


def suppress_naive(found: Candidates, settings: Suppression | None = None) -> list[Floats]:
    """Keep the best box of each object by NumPy: one loop over the classes, one over the boxes."""
    return suppressed_by(found, settings or Suppression(), _keep_naive)


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


def _wanted(
    look: Look, row: int, anchors: torch.Tensor, one: torch.Tensor, settings: Alignment
) -> dict[int, tuple[float, float]]:
    """The anchors that one object of a picture wants, each with its alignment and its overlap."""
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
    """As `_keep`, class by class with NumPy."""
    keep = np.zeros(len(boxes), dtype=np.bool_)
    for one in np.unique(classes):
        left = np.flatnonzero(classes == one)
        while len(left):
            first, rest = left[0], left[1:]
            keep[first] = True
            left = rest[_iou_parts_below(boxes[first], boxes[rest], np.float32(max_iou))]
    return keep


def _iou_parts_below(box: Floats, others: Floats, limit: np.float32) -> npt.NDArray[np.bool_]:
    """Whether the intersection over union with each of the others is at most `limit`; without a division by zero."""
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    both = np.where((sides > 0).all(axis=1), sides[:, 0] * sides[:, 1], np.float32(0))
    areas = (others[:, 2] - others[:, 0]) * (others[:, 3] - others[:, 1])
    area = (box[2] - box[0]) * (box[3] - box[1])
    below: npt.NDArray[np.bool_] = both <= limit * (area + areas - both)
    return below
