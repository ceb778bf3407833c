"""From what the heads say to boxes: distances to boxes in pixels, and of boxes that show one object the best alone.

A head says how far each side of a box lies from its anchor as a distribution over whole strides (0, 1, ... num_bins - 1);
the distance is its mean. Suppression is done class by class, on the host: by a compiled kernel that releases Python's lock,
so that it runs beside the model's next batch.
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
    """Which boxes are kept.

    Attributes:
        min_score: Boxes below it are not looked at. Small for measuring, where the whole curve counts; 0.25 for showing.
        max_iou: Of two boxes of one class that overlap more than this, the one of lower score goes.
        max_candidates: The best of a picture that are looked at.
        max_boxes: The best of a picture that are kept.
    """

    min_score: float = 0.001
    max_iou: float = 0.7
    max_candidates: int = 1000
    max_boxes: int = 300


def decode_boxes(distances: torch.Tensor, anchors: torch.Tensor) -> torch.Tensor:
    """Boxes in pixels, `[..., 4]` as x1, y1, x2, y2, in float32.

    Args:
        distances: `[..., 4 * num_bins]`: logits of the distance to the left, top, right and bottom side, in strides.
        anchors: `[..., 3]`: centre x, centre y and stride in pixels; may lack leading dimensions of `distances`.
    """
    num_bins = distances.shape[-1] // 4
    shares = distances.float().unflatten(-1, (4, num_bins)).softmax(dim=-1)
    # A sum and no matrix product: autocast would round that to 8 bits, which is a pixel on a large object.
    sides = (shares * torch.arange(num_bins, device=distances.device, dtype=torch.float32)).sum(dim=-1) * anchors[..., 2:]
    centres = anchors[..., :2]
    return torch.cat([centres - sides[..., :2], centres + sides[..., 2:]], dim=-1)


@dataclass(frozen=True)
class Candidates:
    """The best boxes of each picture of a batch, on the host, best first, before suppression.

    Attributes:
        boxes: float32 `[batch, k, 4]`, x1, y1, x2, y2 in pixels.
        scores: float32 `[batch, k]`, from 0 to 1, descending.
        classes: int64 `[batch, k]`.
    """

    boxes: Floats
    scores: Floats
    classes: npt.NDArray[np.int64]


def candidates(boxes: torch.Tensor, scores: torch.Tensor, settings: Suppression | None = None) -> Candidates:
    """Pick the best pairs of box and class of each picture, and bring them to the host.

    Args:
        boxes: `[batch, anchors, 4]`.
        scores: `[batch, anchors, classes]`, from 0 to 1.
        settings: How many; as `Suppression` has it unless given.
    """
    settings = settings or Suppression()
    num_classes = scores.shape[2]
    flat = scores.float().flatten(1)
    best = flat.topk(min(settings.max_candidates, flat.shape[1]), dim=1)
    anchors, classes = best.indices // num_classes, best.indices % num_classes
    picked = boxes.float().gather(1, anchors[:, :, None].expand(-1, -1, 4))
    return Candidates(picked.cpu().numpy(), best.values.cpu().numpy(), classes.cpu().numpy())


def suppress(found: Candidates, settings: Suppression | None = None) -> list[Floats]:
    """Keep the best box of each object, by the compiled kernel.

    Returns:
        Per picture float32 `[n, 6]`: x1, y1, x2, y2, score, class; best first.

    Raises:
        MachineError: numba is not installed.
    """
    return suppressed_by(found, settings or Suppression(), compiled(_keep))


def suppressed_by(found: Candidates, settings: Suppression, keep: Keep) -> list[Floats]:
    """Keep the boxes that `keep` chooses, those above the least score."""
    kept = []
    for boxes, scores, classes in zip(found.boxes, found.scores, found.classes, strict=True):
        # The scores descend, so those worth a look come first.
        count = int(np.searchsorted(-scores, -np.float32(settings.min_score), side="right"))
        some = np.ascontiguousarray(boxes[:count])
        chosen = np.flatnonzero(keep(some, classes[:count], settings.max_iou))[: settings.max_boxes]
        kept.append(np.column_stack([some[chosen], scores[chosen], classes[chosen].astype(np.float32)]))
    return kept


def _keep(boxes: Floats, classes: npt.NDArray[np.int64], max_iou: float) -> npt.NDArray[np.bool_]:
    """Whether each box stays; boxes come best first. Written for numba: plain loops over numbers."""
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
