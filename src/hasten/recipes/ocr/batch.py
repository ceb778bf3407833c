"""A batch of images with targets, as plain tensors with the batch as their first dimension."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from hasten.recipes.ocr.maps import PolygonArray

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation of red, green and blue, as used for ImageNet models."""


class OcrBatch(NamedTuple):
    """Images and their targets.

    Attributes:
        images: Normalized `float32 [batch, 3, height, width]` on the device; before that `uint8 [batch, height, width, 3]`.
        shrink: 1 inside shrunk texts, `uint8 [batch, height, width]`.
        shrink_mask: 1 where `shrink` counts.
        thresh: The threshold map, `float32 [batch, height, width]`; None for validation images with cached targets.
        thresh_mask: 1 where `thresh` counts, `uint8`; None if `thresh` is None.
        truth: Labels to compare boxes with; None in training.
    """

    images: torch.Tensor
    shrink: torch.Tensor
    shrink_mask: torch.Tensor
    thresh: torch.Tensor | None
    thresh_mask: torch.Tensor | None
    truth: Truth | None


class Truth(NamedTuple):
    """The labels of a validation batch.

    Attributes:
        points: Corners of an image's polygons, one polygon after another, `float32 [batch, most corners, 2]`.
        counts: Corners of each polygon, `int64 [batch, most polygons]`; 0 is padding.
        ignored: Polygons that do not count, `bool [batch, most polygons]`.
        polygon_ms: Time to make (or read) the targets of each image in milliseconds, `float32 [batch]`.
    """

    points: torch.Tensor
    counts: torch.Tensor
    ignored: torch.Tensor
    polygon_ms: torch.Tensor


def truth_of(polygons: Sequence[PolygonArray], polygon_ms: Sequence[float]) -> Truth:
    """Pad the polygons of several images into one batch.

    Args:
        polygons: Polygons of each image.
        polygon_ms: Time of each image's targets in milliseconds.
    """
    most_points = max((len(one.points) for one in polygons), default=0)
    most = max((len(one) for one in polygons), default=0)
    points = np.zeros((len(polygons), most_points, 2), dtype=np.float32)
    counts = np.zeros((len(polygons), most), dtype=np.int64)
    ignored = np.zeros((len(polygons), most), dtype=np.bool_)
    for number, one in enumerate(polygons):
        points[number, : len(one.points)] = one.points
        counts[number, : len(one)] = np.diff(one.offsets)
        ignored[number, : len(one)] = one.ignored
    times = torch.tensor(list(polygon_ms), dtype=torch.float32)
    return Truth(torch.from_numpy(points), torch.from_numpy(counts), torch.from_numpy(ignored), times)


def polygons_in(truth: Truth) -> list[PolygonArray]:
    """Return the polygons of each image, without padding."""
    points, counts, ignored = (part.cpu().numpy() for part in truth[:3])
    return [_unpadded(*per_image) for per_image in zip(points, counts, ignored, strict=True)]


def _unpadded(points: npt.NDArray[Any], counts: npt.NDArray[Any], ignored: npt.NDArray[Any]) -> PolygonArray:
    num = int((counts > 0).sum())
    offsets = np.concatenate([[0], np.cumsum(counts[:num])]).astype(np.int32)
    return PolygonArray(points[: offsets[-1]], offsets, ignored[:num])
