"""Choose which anchors learn which object: those where the model already does best, by class score and overlap together.

Of the anchors inside an object, the `topk` with the largest `score ** alpha * overlap ** beta` learn it. An anchor that two
objects claim goes to the one it overlaps most. The target score of an object's best anchor equals its overlap; the other
anchors get proportionally less, so scores learn to rank boxes by their accuracy.

Two details differ from the paper, both for small objects. An object narrower than the finest stride may contain no anchor,
so its sides are widened to slightly more than that stride when anchors are searched. While no box overlaps an object, all
its anchors are equally bad; the nearest ones are then chosen with the target `least_overlap`, so that training makes
progress.

Only pairs of an object and an anchor inside it are evaluated, a few percent of all pairs. Boxes and scores are computed for
these pairs only.

Source: Feng et al. 2021, TOOD: Task-aligned One-stage Object Detection (https://arxiv.org/abs/2108.07755).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch

NUDGE = 1e-20
"""Largest bonus for nearness in the alignment; smaller than any meaningful alignment."""
TINY = 1e-30

Look: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""Returns the model's predictions at the given images, anchors and classes, each int64 `[n]`: the scores `[n]` of those
classes, from 0 to 1, and the boxes `[n, 4]`."""


@dataclass(frozen=True, kw_only=True)
class Alignment:
    """Settings of the anchor assignment.

    Attributes:
        alpha: Exponent of the score.
        beta: Exponent of the overlap.
        topk: Largest number of anchors per object.
        least_side: Pixels to which the sides of an object are widened when anchors are searched. Slightly more than the
            finest stride guarantees every object an anchor.
        least_overlap: Smallest target score of an object's best anchor.
    """

    alpha: float = 0.5
    beta: float = 6.0
    topk: int = 10
    least_side: float = 8.5
    least_overlap: float = 0.05


class Truths(NamedTuple):
    """The objects of a batch, padded to the image with the most objects, with at least one slot per image.

    Attributes:
        classes: int64 `[batch, most]`.
        boxes: float32 `[batch, most, 4]`, x1, y1, x2, y2 in pixels.
        valid: bool `[batch, most]`, True where the slot has an object.
    """

    classes: torch.Tensor
    boxes: torch.Tensor
    valid: torch.Tensor


class Assigned(NamedTuple):
    """The n anchors that learn an object, sorted by image and anchor.

    Attributes:
        rows: int64 `[n]`: index of the image.
        places: int64 `[n]`: index of the anchor.
        classes: int64 `[n]`: target class.
        boxes: float32 `[n, 4]`: target box.
        scores: float32 `[n]`: target score, from 0 to 1.
    """

    rows: torch.Tensor
    places: torch.Tensor
    classes: torch.Tensor
    boxes: torch.Tensor
    scores: torch.Tensor


def pad_truths(targets: torch.Tensor, batch_size: int) -> Truths:
    """Arrange the objects of a batch by image.

    Args:
        targets: float32 `[objects, 6]`: row in the batch, class, x1, y1, x2, y2, in any order.
        batch_size: Number of images.
    """
    rows = targets[:, 0].long()
    order = rows.argsort(stable=True)
    rows, targets = rows[order], targets[order]
    counts = torch.bincount(rows, minlength=batch_size)
    places = torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[rows]
    most = max(int(counts.max()), 1) if len(rows) else 1
    classes = torch.zeros(batch_size, most, dtype=torch.int64, device=rows.device)
    boxes = torch.zeros(batch_size, most, 4, device=rows.device)
    valid = torch.zeros(batch_size, most, dtype=torch.bool, device=rows.device)
    classes[rows, places] = targets[:, 1].long()
    boxes[rows, places] = targets[:, 2:].float()
    valid[rows, places] = True
    return Truths(classes, boxes, valid)


def overlaps_of(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return the intersection over union of boxes `[..., 4]` and `[..., 4]` as `[...]`, from 0 to 1."""
    sides = (torch.minimum(first[..., 2:], second[..., 2:]) - torch.maximum(first[..., :2], second[..., :2])).clamp(min=0)
    both = sides[..., 0] * sides[..., 1]
    areas = [(boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1]) for boxes in (first, second)]
    return both / (areas[0] + areas[1] - both).clamp(min=1e-9)


@torch.no_grad()
def assign(look: Look, anchors: torch.Tensor, truths: Truths, settings: Alignment | None = None) -> Assigned:
    """Choose the anchors of each object, for all images and objects at once.

    Args:
        look: Returns the model's predictions.
        anchors: `[anchors, 3]`: centre x, centre y, stride.
        truths: The objects.
        settings: Defaults to `Alignment()`.
    """
    settings = settings or Alignment()
    most, num_anchors = truths.valid.shape[1], len(anchors)
    middles, halves = (truths.boxes[..., :2] + truths.boxes[..., 2:]) / 2, truths.boxes[..., 2:] - truths.boxes[..., :2]
    halves = halves.clamp(min=settings.least_side) / 2 * truths.valid[..., None]  # zero-sized padding contains no anchor
    inside = (anchors[:, 0] - middles[..., :1]).abs() < halves[..., :1]
    inside &= (anchors[:, 1] - middles[..., 1:]).abs() < halves[..., 1:]
    rows, numbers, places = inside.nonzero(as_tuple=True)
    truth, spots = rows * most + numbers, rows * num_anchors + places  # flat indices of objects and of anchors

    classes, boxes = truths.classes[rows, numbers], truths.boxes[rows, numbers]
    scores, predicted = look(rows, places, classes)
    overlaps = overlaps_of(boxes, predicted)
    alignment = alignment_of(scores, overlaps, anchors[places], boxes, settings)

    num_truths = truths.valid.numel()
    wanted = _best_of_each(alignment, truth, num_truths, settings.topk)
    wanted = wanted[_best_of_each(overlaps[wanted], spots[wanted], len(truths.valid) * num_anchors, 1)]
    wanted = wanted[spots[wanted].argsort()]
    alignment, overlaps, truth = alignment[wanted], overlaps[wanted], truth[wanted]

    nothing = alignment.new_zeros(num_truths)
    highest = nothing.scatter_reduce(0, truth, overlaps, "amax").clamp(min=settings.least_overlap)
    best = nothing.scatter_reduce(0, truth, alignment, "amax").clamp(min=TINY)
    targets = alignment / best[truth] * highest[truth]
    return Assigned(rows[wanted], places[wanted], classes[wanted], boxes[wanted], targets)


def alignment_of(
    scores: torch.Tensor, overlaps: torch.Tensor, anchors: torch.Tensor, boxes: torch.Tensor, settings: Alignment
) -> torch.Tensor:
    """Return how well each anchor fits its object, above 0. Among anchors without overlap, nearer ones score higher."""
    distance = (anchors[..., :2] - (boxes[..., :2] + boxes[..., 2:]) / 2).abs().sum(dim=-1)
    return scores**settings.alpha * overlaps**settings.beta + NUDGE / (1 + distance)


def _best_of_each(values: torch.Tensor, groups: torch.Tensor, num_groups: int, count: int) -> torch.Tensor:
    """Return the indices of the largest values of each group, up to `count` each. Ties go to the first."""
    order = values.argsort(descending=True, stable=True)
    order = order[groups[order].argsort(stable=True)]
    sizes = torch.bincount(groups, minlength=num_groups)
    ranks = torch.arange(len(order), device=order.device) - (sizes.cumsum(0) - sizes)[groups[order]]
    return order[ranks < count]
