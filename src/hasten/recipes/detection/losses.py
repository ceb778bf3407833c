"""What a detector learns by: classes by cross entropy, boxes by overlap, distances by the two bins they lie between.

All three are sums over anchors, and are divided by the sum of the scores that anchors are asked for. So a batch, its parts
and an accumulation window give one and the same mean, and `Loss(total, weight)` says it exactly.

Sources: Zheng et al. 2019, Distance-IoU Loss (https://arxiv.org/abs/1911.08287); Li et al. 2020, Generalized Focal Loss
(https://arxiv.org/abs/2006.04388); the three weights are Ultralytics' of YOLOv8.
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
    """How much each part of the loss counts.

    Attributes:
        classes: Of the cross entropy.
        boxes: Of the overlap.
        distances: Of the distribution of distances.
    """

    classes: float = 0.5
    boxes: float = 7.5
    distances: float = 1.5


class Parts(NamedTuple):
    """The loss of a batch, in sums: scalar float32 tensors, the first three before their weights.

    Attributes:
        classes: Cross entropy, over all anchors and classes.
        boxes: One less the overlap, over the anchors that learn an object, each by the score it is asked for.
        distances: Cross entropy of the two bins, likewise.
        weight: The sum of the scores asked for, and at least 1: what the sums are to be divided by.
    """

    classes: torch.Tensor
    boxes: torch.Tensor
    distances: torch.Tensor
    weight: torch.Tensor

    def total(self, weights: Weights | None = None) -> torch.Tensor:
        """The weighted sum."""
        weights = weights or Weights()
        return weights.classes * self.classes + weights.boxes * self.boxes + weights.distances * self.distances


def detection_loss(output: Output, targets: torch.Tensor, settings: Alignment | None = None) -> Parts:
    """The loss of a batch: boxes are made where an object is, and with gradients where an anchor learns one.

    Args:
        output: What the detector gave.
        targets: float32 `[objects, 6]`: row in the batch, class, x1, y1, x2, y2 in pixels.
        settings: How anchors are chosen.
    """

    def look(rows: torch.Tensor, places: torch.Tensor, classes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = output.logits[rows, places, classes].float().sigmoid()
        return scores, decode_boxes(output.distances[rows, places], output.anchors[places])

    asked = assign(look, output.anchors, pad_truths(targets, len(output.logits)), settings)
    distances = output.distances[asked.rows, asked.places]
    return loss_parts(output, asked, decode_boxes(distances, output.anchors[asked.places]), distances)


def complete_overlap(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Overlap less what the middles lie apart, less what the shapes differ: of `[n, 4]` and `[n, 4]`, `[n]`, up to 1."""
    left_top, right_bottom = torch.maximum(first[:, :2], second[:, :2]), torch.minimum(first[:, 2:], second[:, 2:])
    both = (right_bottom - left_top).clamp(min=0).prod(dim=1)
    sides, other = first[:, 2:] - first[:, :2], second[:, 2:] - second[:, :2]
    overlap = both / (sides.prod(dim=1) + other.prod(dim=1) - both + EPSILON)
    around = torch.maximum(first[:, 2:], second[:, 2:]) - torch.minimum(first[:, :2], second[:, :2])
    apart = (first[:, :2] + first[:, 2:] - second[:, :2] - second[:, 2:]).square().sum(dim=1) / 4
    turned = torch.atan(other[:, 0] / (other[:, 1] + EPSILON)) - torch.atan(sides[:, 0] / (sides[:, 1] + EPSILON))
    shape = 4 / math.pi**2 * turned.square()
    with torch.no_grad():
        counts = shape / (shape - overlap + 1 + EPSILON)
    return overlap - apart / (around.square().sum(dim=1) + EPSILON) - counts * shape


def distance_loss(distances: torch.Tensor, boxes: torch.Tensor, anchors: torch.Tensor) -> torch.Tensor:
    """Cross entropy of the two bins that each true distance lies between, the mean over the four sides: `[n]`.

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


def loss_parts(output: Output, asked: Assigned, boxes: torch.Tensor, distances: torch.Tensor) -> Parts:
    """Put the parts together; `boxes` and `distances` are those of the anchors that learn an object."""
    wanted = torch.zeros(output.logits.shape, device=output.logits.device)
    wanted[asked.rows, asked.places, asked.classes] = asked.scores
    return Parts(
        F.binary_cross_entropy_with_logits(output.logits.float(), wanted, reduction="sum"),
        ((1 - complete_overlap(boxes, asked.boxes)) * asked.scores).sum(),
        (distance_loss(distances, asked.boxes, output.anchors[asked.places]) * asked.scores).sum(),
        asked.scores.sum().clamp(min=1),
    )
