"""Convert the heads' outputs to boxes: distances to boxes in pixels, then suppression of all but the best box of an object.

For each side of a box, a head predicts its distance from the anchor as a distribution over whole strides (0, 1, ...
num_bins - 1); the distance is the mean. Suppression runs per class on the host, in a compiled kernel that releases the GIL
and so overlaps the model's next batch.
Source: Li et al. 2020, Generalized Focal Loss (https://arxiv.org/abs/2006.04388), for the distances.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from hasten.recipes.needed import compiled

Floats = npt.NDArray[np.float32]
Keep = Callable[[Floats, npt.NDArray[np.int64], float], npt.NDArray[np.bool_]]


@dataclass(frozen=True, kw_only=True)
class Suppression:
    """Settings for which boxes to keep.

    Attributes:
        min_score: Boxes with lower scores are ignored. Use a small value for metrics, which need the whole curve, and 0.25
            for display.
        max_iou: If two boxes of one class overlap more than this, the one with the lower score is dropped.
        max_candidates: Number of best boxes per image to consider.
        max_boxes: Largest number of boxes per image to keep.
    """

    min_score: float = 0.001
    max_iou: float = 0.7
    max_candidates: int = 1000
    max_boxes: int = 300


def decode_boxes(distances: torch.Tensor, anchors: torch.Tensor) -> torch.Tensor:
    """Return boxes in pixels, float32 `[..., 4]` as x1, y1, x2, y2.

    Args:
        distances: `[..., 4 * num_bins]`: logits of the distances to the left, top, right and bottom side, in strides.
        anchors: `[..., 3]`: centre x, centre y and stride in pixels; may lack leading dimensions of `distances`.
    """
    num_bins = distances.shape[-1] // 4
    shares = distances.float().unflatten(-1, (4, num_bins)).softmax(dim=-1)
    # A sum instead of a matrix product: autocast would round the product to 8 bits, a pixel's error on a large object.
    sides = (shares * torch.arange(num_bins, device=distances.device, dtype=torch.float32)).sum(dim=-1) * anchors[..., 2:]
    centres = anchors[..., :2]
    return torch.cat([centres - sides[..., :2], centres + sides[..., 2:]], dim=-1)


@dataclass(frozen=True)
class Candidates:
    """The best boxes of each image of a batch, on the host, best first, before suppression.

    Attributes:
        boxes: float32 `[batch, k, 4]`, x1, y1, x2, y2 in pixels.
        scores: float32 `[batch, k]`, from 0 to 1, descending.
        classes: int64 `[batch, k]`.
    """

    boxes: Floats
    scores: Floats
    classes: npt.NDArray[np.int64]


def candidates(boxes: torch.Tensor, scores: torch.Tensor, settings: Suppression | None = None) -> Candidates:
    """Select the best pairs of box and class of each image and copy them to the host.

    Args:
        boxes: `[batch, anchors, 4]`.
        scores: `[batch, anchors, classes]`, from 0 to 1.
        settings: Number of candidates; defaults to `Suppression()`.
    """
    settings = settings or Suppression()
    num_classes = scores.shape[2]
    flat = scores.float().flatten(1)
    best = flat.topk(min(settings.max_candidates, flat.shape[1]), dim=1)
    anchors, classes = best.indices // num_classes, best.indices % num_classes
    picked = boxes.float().gather(1, anchors[:, :, None].expand(-1, -1, 4))
    return Candidates(picked.cpu().numpy(), best.values.cpu().numpy(), classes.cpu().numpy())


def suppress(best: Candidates, settings: Suppression | None = None) -> list[Floats]:
    """Keep the best box of each object, with the compiled kernel.

    Returns:
        Per image float32 `[n, 6]`: x1, y1, x2, y2, score, class; best first.

    Raises:
        MachineError: numba is not installed.
    """
    return suppressed_by(best, settings or Suppression(), compiled(_keep))


def suppressed_by(best: Candidates, settings: Suppression, keep: Keep) -> list[Floats]:
    """Keep the boxes selected by `keep`, among those with at least the minimum score."""
    detections = []
    for boxes, scores, classes in zip(best.boxes, best.scores, best.classes, strict=True):
        # Scores are sorted in descending order, so boxes above the minimum come first.
        count = int(np.searchsorted(-scores, -np.float32(settings.min_score), side="right"))
        remaining = np.ascontiguousarray(boxes[:count])
        chosen = np.flatnonzero(keep(remaining, classes[:count], settings.max_iou))[: settings.max_boxes]
        detections.append(np.column_stack([remaining[chosen], scores[chosen], classes[chosen].astype(np.float32)]))
    return detections


def _keep(boxes: Floats, classes: npt.NDArray[np.int64], max_iou: float) -> npt.NDArray[np.bool_]:
    """Return which boxes to keep; boxes are sorted best first. Written for numba: plain loops over numbers."""
    count = boxes.shape[0]
    keep = np.ones(count, dtype=np.bool_)
    limit = np.float32(max_iou)
    areas = np.empty(count, dtype=np.float32)
    for i in range(count):
        areas[i] = (boxes[i, 2] - boxes[i, 0]) * (boxes[i, 3] - boxes[i, 1])
    for i in range(count):
        if not keep[i]:
            continue
        for j in range(i + 1, count):
            if not keep[j] or classes[j] != classes[i]:
                continue
            width = min(boxes[i, 2], boxes[j, 2]) - max(boxes[i, 0], boxes[j, 0])
            height = min(boxes[i, 3], boxes[j, 3]) - max(boxes[i, 1], boxes[j, 1])
            if width > 0 and height > 0:
                both = width * height
                if both > limit * (areas[i] + areas[j] - both):
                    keep[j] = False
    return keep
