"""The detector's losses: cross entropy for classes, overlap for boxes, and distribution focal loss for distances.

All three are sums over anchors, divided by the sum of the anchors' target scores. `Loss(total, weight)` expresses this
exactly, so a batch, its parts, and an accumulation window all give the same mean.

Sources: Zheng et al. 2019, Distance-IoU Loss (https://arxiv.org/abs/1911.08287); Li et al. 2020, Generalized Focal Loss
(https://arxiv.org/abs/2006.04388). The three weights are those of Ultralytics YOLOv8.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.nn import functional as F  # noqa: N812  the name everybody uses

from hasten.recipes.detection.assign import Alignment, Assigned, assign, pad_truths
from hasten.recipes.detection.decode import decode_boxes
from hasten.recipes.detection.model import Output

EPSILON = 1e-7


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Weights of the parts of the loss.

    Attributes:
        classes: Weight of the cross entropy of classes.
        boxes: Weight of the overlap loss.
        distances: Weight of the distance distribution loss.
    """

    classes: float = 0.5
    boxes: float = 7.5
    distances: float = 1.5


class Parts(NamedTuple):
    """The loss of a batch as sums: scalar float32 tensors, the first three before weighting.

    Attributes:
        classes: Cross entropy over all anchors and classes.
        boxes: One minus the overlap, over the anchors that learn an object, weighted by their target scores.
        distances: Cross entropy of the two bins, likewise.
        weight: Divisor of the sums: the sum of the target scores, at least 1.
    """

    classes: torch.Tensor
    boxes: torch.Tensor
    distances: torch.Tensor
    weight: torch.Tensor

    def total(self, weights: Weights | None = None) -> torch.Tensor:
        """Return the weighted sum."""
        weights = weights or Weights()
        return weights.classes * self.classes + weights.boxes * self.boxes + weights.distances * self.distances


def detection_loss(output: Output, targets: torch.Tensor, settings: Alignment | None = None) -> Parts:
    """Compute the loss of a batch. Boxes are computed only inside objects, with gradients only for anchors that learn one.

    Args:
        output: The detector's output.
        targets: float32 `[objects, 6]`: row in the batch, class, x1, y1, x2, y2 in pixels.
        settings: Settings of the anchor assignment.
    """

    def look(rows: torch.Tensor, places: torch.Tensor, classes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = output.logits[rows, places, classes].float().sigmoid()
        return scores, decode_boxes(output.distances[rows, places], output.anchors[places])

    assigned = assign(look, output.anchors, pad_truths(targets, len(output.logits)), settings)
    distances = output.distances[assigned.rows, assigned.places]
    return loss_parts(output, assigned, decode_boxes(distances, output.anchors[assigned.places]), distances)


def complete_overlap(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return the complete IoU of `[n, 4]` and `[n, 4]` as `[n]`, at most 1: overlap minus centre and shape penalties."""
    left_top, right_bottom = torch.maximum(first[:, :2], second[:, :2]), torch.minimum(first[:, 2:], second[:, 2:])
    both = (right_bottom - left_top).clamp(min=0).prod(dim=1)
    sides, other = first[:, 2:] - first[:, :2], second[:, 2:] - second[:, :2]
    overlap = both / (sides.prod(dim=1) + other.prod(dim=1) - both + EPSILON)
    around = torch.maximum(first[:, 2:], second[:, 2:]) - torch.minimum(first[:, :2], second[:, :2])
    apart = (first[:, :2] + first[:, 2:] - second[:, :2] - second[:, 2:]).square().sum(dim=1) / 4
    angle = torch.atan(other[:, 0] / (other[:, 1] + EPSILON)) - torch.atan(sides[:, 0] / (sides[:, 1] + EPSILON))
    shape = 4 / math.pi**2 * angle.square()
    with torch.no_grad():
        trade_off = shape / (shape - overlap + 1 + EPSILON)
    return overlap - apart / (around.square().sum(dim=1) + EPSILON) - trade_off * shape


def distance_loss(distances: torch.Tensor, boxes: torch.Tensor, anchors: torch.Tensor) -> torch.Tensor:
    """Return the cross entropy of the two bins around each true distance, averaged over the four sides: `[n]`.

    Args:
        distances: `[n, 4 * num_bins]`, logits.
        boxes: `[n, 4]`, the true boxes in pixels.
        anchors: `[n, 3]`.
    """
    num_bins = distances.shape[1] // 4
    centres, stride = anchors[:, :2], anchors[:, 2:]
    true = torch.cat([centres - boxes[:, :2], boxes[:, 2:] - centres], dim=1) / stride
    true = true.clamp(min=0, max=num_bins - 1 - 0.01)
    below = true.long()
    share_above = true - below
    logs = distances.float().unflatten(1, (4, num_bins)).log_softmax(dim=2)
    at_below = logs.gather(2, below[:, :, None])[:, :, 0]
    at_above = logs.gather(2, below[:, :, None] + 1)[:, :, 0]
    cost: torch.Tensor = -(at_below * (1 - share_above) + at_above * share_above).mean(dim=1)
    return cost


def loss_parts(output: Output, assigned: Assigned, boxes: torch.Tensor, distances: torch.Tensor) -> Parts:
    """Combine the parts; `boxes` and `distances` belong to the anchors that learn an object."""
    wanted = torch.zeros(output.logits.shape, device=output.logits.device)
    wanted[assigned.rows, assigned.places, assigned.classes] = assigned.scores
    return Parts(
        F.binary_cross_entropy_with_logits(output.logits.float(), wanted, reduction="sum"),
        ((1 - complete_overlap(boxes, assigned.boxes)) * assigned.scores).sum(),
        (distance_loss(distances, assigned.boxes, output.anchors[assigned.places]) * assigned.scores).sum(),
        assigned.scores.sum().clamp(min=1),
    )
