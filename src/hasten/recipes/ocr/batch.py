"""A batch of pictures with targets, as plain tensors, each with the batch as its first dimension."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from hasten.recipes.ocr.maps import PolygonArray

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of the red, green and blue of photographs, as ImageNet's models take them."""


class OcrBatch(NamedTuple):
    """Pictures and what is to be found in them.

    Attributes:
        images: Normalised `float32 [batch, 3, height, width]`; `uint8 [batch, height, width, 3]` until it is on the device.
        shrink: Where shrunk texts are, `uint8 [batch, height, width]`.
        shrink_mask: Where that counts.
        thresh: The threshold map, `float32 [batch, height, width]`; None for held-out pictures whose targets are kept.
        thresh_mask: Where that counts, `uint8`; None as `thresh`.
        truth: What boxes are compared with; None in training.
    """

    images: torch.Tensor
    shrink: torch.Tensor
    shrink_mask: torch.Tensor
    thresh: torch.Tensor | None
    thresh_mask: torch.Tensor | None
    truth: Truth | None


class Truth(NamedTuple):
    """The labels of a held-out batch.

    Attributes:
        points: Corners of a picture's polygons, one after another, `float32 [batch, most corners, 2]`.
        counts: Corners of each polygon, `int64 [batch, most polygons]`; 0 where a picture has no further polygon.
        ignored: Which polygons do not count, `bool [batch, most polygons]`.
        polygon_ms: What making (or reading) the targets of each picture took, in milliseconds, `float32 [batch]`.
    """

    points: torch.Tensor
    counts: torch.Tensor
    ignored: torch.Tensor
    polygon_ms: torch.Tensor


def truth_of(polygons: Sequence[PolygonArray], polygon_ms: Sequence[float]) -> Truth:
    """Lay the polygons of pictures side by side.

    Args:
        polygons: Of each picture.
        polygon_ms: Of each picture, milliseconds.
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
    """The polygons of each picture again."""
    points, counts, ignored = (part.cpu().numpy() for part in truth[:3])
    return [_unpadded(*of_picture) for of_picture in zip(points, counts, ignored, strict=True)]


def _unpadded(points: npt.NDArray[Any], counts: npt.NDArray[Any], ignored: npt.NDArray[Any]) -> PolygonArray:
    num = int((counts > 0).sum())
    offsets = np.concatenate([[0], np.cumsum(counts[:num])]).astype(np.int32)
    return PolygonArray(points[: offsets[-1]], offsets, ignored[:num])
