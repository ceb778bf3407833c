"""The text-detection job as it is usually written: the baseline for measuring gains.

Each visit decodes its image again. Targets are made polygon by polygon in Python, for validation images too. Images are
copied to the device as float32. The model runs twice on a validation batch, and waits while boxes are found. Images,
augmentation, targets, losses and metrics are those of `hasten.recipes.ocr.job`.

The maps are those of the paper's code, and the reference for the kernels of `maps`. Source: Liao et al. 2020, "Real-time
Scene Text Detection with Differentiable Binarization", sections 3.3 and 3.4, and the code published with it.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.utils.data import Dataset

from hasten.core.job import Job
from hasten.recipes.needed import needed
from hasten.recipes.ocr.batch import MEAN, STD, OcrBatch
from hasten.recipes.ocr.data import HeldOutSample, OcrData, Sample, prepared
from hasten.recipes.ocr.job import OcrJob, batch_of, polygons_of_sample
from hasten.recipes.ocr.losses import db_loss, probability_loss
from hasten.recipes.ocr.maps import Maps, MapSettings, PolygonArray
from hasten.recipes.ocr.metrics import IOU, ON_IGNORED, Counts, count_texts
from hasten.recipes.ocr.postprocess import (
    Boxes,
    BoxSettings,
    Texts,
    box_score,
    find_outlines,
    grown,
    outer_contours,
    sorted_boxes,
)
from hasten.recipes.pictures import opencv

Floats = npt.NDArray[np.float64]
Map = npt.NDArray[np.float32]


class NaiveOcrJob(OcrJob):
    """Text detection written naively. Put it before your own job: `class NaiveReceipts(NaiveOcrJob, Receipts)`."""

    forms = (OcrJob,)

    deterministic_transform = Job.deterministic_transform

    def train_data(self) -> Dataset[Any]:
        """Return the training images, decoded at each visit."""
        return DecodedData(OcrData(self.items()[0]), self.canonical_size())

    def valid_data(self) -> Dataset[Any]:
        """Return the validation images, decoded at each pass."""
        return DecodedHeldOutData(OcrData(self.items()[1]), self.canonical_size())

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Create the optimizer."""
        return torch.optim.AdamW(model.parameters(), lr=self.rate, weight_decay=0.01)

    def collate(self, samples: list[Any]) -> OcrBatch:
        """Normalize the images on the host, and make their targets polygon by polygon."""
        mean, std = (np.asarray(values, dtype=np.float32) for values in (MEAN, STD))
        normalized = [(sample[0].astype(np.float32) / np.float32(255) - mean) / std for sample in samples]
        images = torch.from_numpy(np.stack([np.ascontiguousarray(image.transpose(2, 0, 1)) for image in normalized]))
        start = time.perf_counter()
        settings = self.map_settings()
        maps = [naive_maps(polygons_of_sample(sample), sample[0].shape[:2], settings) for sample in samples]
        spent_ms = 1e3 * (time.perf_counter() - start) / len(samples)
        return batch_of(images, maps, samples, [spent_ms] * len(samples))

    def loss(self, model: nn.Module, batch: OcrBatch) -> torch.Tensor:
        """Compute the three losses of DBNet; in validation only that of the probability map."""
        logits = model(batch.images)
        if logits.shape[1] == 1 or batch.thresh is None or batch.thresh_mask is None:
            return probability_loss(logits, batch.shrink, batch.shrink_mask)
        return db_loss(logits, batch.shrink, batch.shrink_mask, batch.thresh, batch.thresh_mask)

    def metric(self, model: nn.Module, batch: OcrBatch) -> Any:
        """Compute H-mean, precision, recall and the time of each part while the model waits."""
        return self.measured(torch.sigmoid(model(batch.images)[:, 0].float()).cpu(), batch)

    def find_texts(self, probability: Map) -> Texts:
        """Return the texts of one image from its map of probabilities `[height, width]`."""
        settings = self.box_settings()
        return find_outlines(probability, settings) if settings.outlines else naive_boxes(probability, settings)

    def count_texts(self, texts: Texts, truth: PolygonArray) -> Counts:
        """Count the matches between the texts and the labels of one image."""
        return naive_counts(texts.corners, truth) if isinstance(texts, Boxes) else count_texts(texts, truth)


class DecodedData(Dataset[Sample]):
    """Images and their polygons, decoded and fitted at each visit.

    Args:
        data: The raw samples.
        size: Height and width of the canonical images.
    """

    def __init__(self, data: OcrData, size: tuple[int, int]) -> None:
        self._data, self._size = data, size

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> Sample:
        return prepared(self._data[index], self._size)


class DecodedHeldOutData(Dataset[HeldOutSample]):
    """Validation images, decoded at each pass, without targets.

    Args:
        data: The raw samples.
        size: Height and width of the canonical images.
    """

    def __init__(self, data: OcrData, size: tuple[int, int]) -> None:
        self._data = DecodedData(data, size)

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> HeldOutSample:
        return (*self._data[index], None)


def naive_maps(polygons: PolygonArray, size: tuple[int, int], settings: MapSettings) -> Maps:
    """Make the four target maps of one image.

    Args:
        polygons: The texts, in pixels of the maps.
        size: Height and width of the maps.
        settings: Shrinking, thresholds and the smallest text.

    Raises:
        MachineError: A package of the extra `recipes` is missing.
    """
    cv2 = opencv()
    shrink, shrink_mask = np.zeros(size, dtype=np.uint8), np.ones(size, dtype=np.uint8)
    border, border_mask = np.zeros(size, dtype=np.float32), np.zeros(size, dtype=np.uint8)
    for number in range(len(polygons)):
        corners = np.asarray(polygons.polygon(number), dtype=np.float32)
        width, height = corners.max(axis=0) - corners.min(axis=0)
        if polygons.ignored[number] or min(width, height) < settings.min_text_size:
            cv2.fillPoly(shrink_mask, [corners.astype(np.int32)], 0)
            continue
        distance = shrink_distance(corners, settings.shrink_ratio)
        inner = _moved(corners, -distance) if distance > 0 else []
        if not inner:
            cv2.fillPoly(shrink_mask, [corners.astype(np.int32)], 0)
            continue
        for part in inner:
            cv2.fillPoly(shrink, [part], 1)
        _add_border(corners, distance, border, border_mask)
    low, high = settings.thresh_min, settings.thresh_max
    thresh = (border * (high - low) + low).astype(np.float32)
    return Maps(shrink=shrink, shrink_mask=shrink_mask, thresh=thresh, thresh_mask=border_mask)


def shrink_distance(corners: npt.NDArray[Any], shrink_ratio: float) -> float:
    """Return how far a polygon's edges move inward in pixels: `D = A (1 - r^2) / L` (equation 10); 0 below 1 px²."""
    polygon = needed("shapely").Polygon(corners)
    if polygon.area < 1:
        return 0.0
    return float(polygon.area * (1 - shrink_ratio**2) / polygon.length)


def _moved(corners: npt.NDArray[Any], distance: float) -> list[npt.NDArray[np.int32]]:
    """Offset a polygon outward (inward if negative) with Clipper: in whole pixels, in one part or several."""
    pyclipper = needed("pyclipper")
    offset = pyclipper.PyclipperOffset()
    offset.AddPath([tuple(corner) for corner in corners.tolist()], pyclipper.JT_ROUND, pyclipper.ET_CLOSEDPOLYGON)
    return [np.asarray(part, dtype=np.int32).reshape(-1, 2) for part in offset.Execute(distance)]


def _add_border(
    corners: npt.NDArray[Any], distance: float, border: npt.NDArray[np.float32], border_mask: npt.NDArray[np.uint8]
) -> None:
    """Draw one polygon's border: 1 on its edges, falling to 0 at `distance` pixels from them."""
    padded = _moved(corners, distance)
    if not padded:
        return
    outline = padded[0]
    opencv().fillPoly(border_mask, [outline], 1)
    (left, top), (right, bottom) = outline.min(axis=0), outline.max(axis=0)
    height, width = border.shape
    if right < 0 or bottom < 0 or left >= width or top >= height:
        return
    first_x, last_x = min(max(0, left), width - 1), min(max(0, right), width - 1)
    first_y, last_y = min(max(0, top), height - 1), min(max(0, bottom), height - 1)
    xs = np.broadcast_to(np.arange(right - left + 1, dtype=np.float64), (bottom - top + 1, right - left + 1))
    ys = np.broadcast_to(np.arange(bottom - top + 1, dtype=np.float64)[:, None], (bottom - top + 1, right - left + 1))
    moved = corners.astype(np.float64) - (left, top)
    nearest = np.ones(xs.shape, dtype=np.float64)
    for number in range(len(moved)):
        away = edge_distance(xs, ys, moved[number], moved[(number + 1) % len(moved)])
        nearest = np.minimum(nearest, np.clip(away / distance, 0, 1))
    closeness = 1 - nearest[first_y - top : last_y - top + 1, first_x - left : last_x - left + 1]
    part = border[first_y : last_y + 1, first_x : last_x + 1]
    np.fmax(closeness.astype(np.float32), part, out=part)


def edge_distance(xs: Floats, ys: Floats, start: Floats, end: Floats) -> Floats:
    """Return the distance of pixels from an edge by the formula of the paper's code.

    Inside the circle over the edge, this is the distance to the edge's line, and outside the distance to the nearer end. It
    is not the distance to the segment, but it is what published models were trained with.

    Args:
        xs: x of the pixels, `[height, width]`.
        ys: y of the pixels.
        start: Start of the edge, x and y.
        end: End of the edge.
    """
    to_start = (xs - start[0]) ** 2 + (ys - start[1]) ** 2
    to_end = (xs - end[0]) ** 2 + (ys - end[1]) ** 2
    edge = (start[0] - end[0]) ** 2 + (start[1] - end[1]) ** 2
    with np.errstate(divide="ignore", invalid="ignore"):
        cosine = (edge - to_start - to_end) / (2 * np.sqrt(to_start * to_end))
        squared_sine = np.nan_to_num(1 - cosine**2)
        away: Floats = np.sqrt(np.maximum(to_start * to_end * squared_sine / edge, 0))
    outside = cosine < 0
    away[outside] = np.sqrt(np.fmin(to_start, to_end))[outside]
    return np.nan_to_num(away)


def naive_boxes(probability: Map, settings: BoxSettings) -> Boxes:
    """Find boxes like the paper's code: expanded with Clipper, one contour after another.

    Args:
        probability: `float32 [height, width]`.
        settings: Settings of the post-processing.

    Raises:
        MachineError: A package of the extra `recipes` is missing.
    """
    cv2 = opencv()
    corners, scores = [], []
    for contour in outer_contours(probability, settings):
        rectangle = cv2.minAreaRect(contour)
        if min(rectangle[1]) < settings.min_side:
            continue
        box = cv2.boxPoints(rectangle)
        score = box_score(probability, box)
        if score < settings.box_thresh:
            continue
        parts = grown(box, settings)
        larger = cv2.minAreaRect(parts[0] if parts else box)
        if min(larger[1]) < settings.min_side + 2:
            continue
        corners.append(cv2.boxPoints(larger))
        scores.append(score)
    return sorted_boxes(corners, scores)


def naive_counts(corners: Map, truth: PolygonArray) -> Counts:
    """Count the matches of one image, pair by pair.

    Args:
        corners: Corners of each box, `[n, 4, 2]`.
        truth: The labels.

    Raises:
        MachineError: shapely is not installed.
    """
    make = needed("shapely").Polygon
    labels: list[Any] = [make(truth.polygon(number)) for number in range(len(truth))]
    boxes: list[Any] = [make(box) for box in corners]
    overlap = [[box.intersection(label).area for box in boxes] for label in labels]
    return _counted(overlap, [label.area for label in labels], [box.area for box in boxes], truth.ignored.tolist())


def _counted(overlap: list[list[float]], label_area: list[float], box_area: list[float], ignored: list[bool]) -> Counts:
    """Match labels and boxes, both in order.

    Args:
        overlap: Intersection area of each label with each box.
        label_area: Area of each label.
        box_area: Area of each box.
        ignored: Labels that do not count.
    """
    ignored_box = [
        area > 0 and any(ignored[at] and overlap[at][number] / area > ON_IGNORED for at in range(len(ignored)))
        for number, area in enumerate(box_area)
    ]
    taken = [False] * len(box_area)
    matched = 0
    for at, area in enumerate(label_area):
        if ignored[at]:
            continue
        for number, other in enumerate(box_area):
            if taken[number] or ignored_box[number]:
                continue
            union = area + other - overlap[at][number]
            if union > 0 and overlap[at][number] / union >= IOU:
                taken[number] = True
                matched += 1
                break
    return Counts(matched, len(label_area) - sum(ignored), len(box_area) - sum(ignored_box))
