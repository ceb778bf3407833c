"""Which anchors learn which object: those where the model is already best at it, by class and by overlap together.

Of the anchors inside an object, the `topk` with the largest `score ** alpha * overlap ** beta` learn it; an anchor that two
objects want goes to the one it overlaps most. The best anchor of an object is asked for a score as high as its overlap, the
others for less in proportion, so that scores come to rank boxes by how well they lie.

Two things differ from the paper, both for small objects. An object narrower than the finest stride may hold no anchor: its
sides are widened to a little more than that stride before anchors are looked for. And as long as no box overlaps an object,
all anchors in it are equally bad: the nearest are taken then, and asked for `least_overlap`, so that something is learnt.

Only pairs of an object and an anchor in it are looked at, a few in a hundred of all pairs: boxes and scores are asked for
there and nowhere else.

Source: Feng et al. 2021, TOOD: Task-aligned One-stage Object Detection (https://arxiv.org/abs/2108.07755).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch

NUDGE = 1e-20
"""What nearness adds to the alignment: less than any alignment that means something."""
TINY = 1e-30

Look: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""Tells what the model says: of pictures, anchors and classes, each int64 `[n]`, the scores `[n]` (from 0 to 1) of those
classes and the boxes `[n, 4]` there."""


@dataclass(frozen=True, kw_only=True)
class Alignment:
    """How anchors are chosen.

    Attributes:
        alpha: Exponent of the score.
        beta: Exponent of the overlap.
        topk: Anchors of one object at most.
        least_side: Pixels to which the sides of an object are widened when its anchors are looked for. From a little more
            than the finest stride on, every object holds one.
        least_overlap: What the best anchor of an object is asked for at least.
    """

    alpha: float = 0.5
    beta: float = 6.0
    topk: int = 10
    least_side: float = 8.5
    least_overlap: float = 0.05


class Truths(NamedTuple):
    """The objects of a batch, padded to the picture with the most; at least one place each.

    Attributes:
        classes: int64 `[batch, most]`.
        boxes: float32 `[batch, most, 4]`, x1, y1, x2, y2 in pixels.
        valid: bool `[batch, most]`, whether there is an object.
    """

    classes: torch.Tensor
    boxes: torch.Tensor
    valid: torch.Tensor


class Assigned(NamedTuple):
    """The anchors that learn an object, sorted by picture and anchor; n of them.

    Attributes:
        rows: int64 `[n]`: the picture.
        places: int64 `[n]`: the anchor.
        classes: int64 `[n]`: the class it is to say.
        boxes: float32 `[n, 4]`: the box it is to say.
        scores: float32 `[n]`: the score it is asked for, from 0 to 1.
    """

    rows: torch.Tensor
    places: torch.Tensor
    classes: torch.Tensor
    boxes: torch.Tensor
    scores: torch.Tensor


def pad_truths(targets: torch.Tensor, batch_size: int) -> Truths:
    """Lay the objects of a batch out by picture.

    Args:
        targets: float32 `[objects, 6]`: row in the batch, class, x1, y1, x2, y2; in any order.
        batch_size: Pictures.
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
    """Intersection over union of boxes `[..., 4]` and `[..., 4]`: `[...]`, from 0 to 1."""
    sides = (torch.minimum(first[..., 2:], second[..., 2:]) - torch.maximum(first[..., :2], second[..., :2])).clamp(min=0)
    both = sides[..., 0] * sides[..., 1]
    areas = [(boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1]) for boxes in (first, second)]
    return both / (areas[0] + areas[1] - both).clamp(min=1e-9)


@torch.no_grad()
def assign(look: Look, anchors: torch.Tensor, truths: Truths, settings: Alignment | None = None) -> Assigned:
    """Choose the anchors of each object, for all pictures and objects at once.

    Args:
        look: Tells what the model says.
        anchors: `[anchors, 3]`: centre x, centre y, stride.
        truths: The objects.
        settings: As `Alignment` has it unless given.
    """
    settings = settings or Alignment()
    most, num_anchors = truths.valid.shape[1], len(anchors)
    middles, halves = (truths.boxes[..., :2] + truths.boxes[..., 2:]) / 2, truths.boxes[..., 2:] - truths.boxes[..., :2]
    halves = halves.clamp(min=settings.least_side) / 2 * truths.valid[..., None]  # nothing lies within 0 of anything
    inside = (anchors[:, 0] - middles[..., :1]).abs() < halves[..., :1]
    inside &= (anchors[:, 1] - middles[..., 1:]).abs() < halves[..., 1:]
    rows, numbers, places = inside.nonzero(as_tuple=True)
    truth, spots = rows * most + numbers, rows * num_anchors + places  # an object, an anchor, each by one number

    classes, boxes = truths.classes[rows, numbers], truths.boxes[rows, numbers]
    scores, found = look(rows, places, classes)
    overlaps = overlaps_of(boxes, found)
    alignment = alignment_of(scores, overlaps, anchors[places], boxes, settings)

    num_truths = truths.valid.numel()
    wanted = _best_of_each(alignment, truth, num_truths, settings.topk)
    wanted = wanted[_best_of_each(overlaps[wanted], spots[wanted], len(truths.valid) * num_anchors, 1)]
    wanted = wanted[spots[wanted].argsort()]
    alignment, overlaps, truth = alignment[wanted], overlaps[wanted], truth[wanted]

    nothing = alignment.new_zeros(num_truths)
    highest = nothing.scatter_reduce(0, truth, overlaps, "amax").clamp(min=settings.least_overlap)
    best = nothing.scatter_reduce(0, truth, alignment, "amax").clamp(min=TINY)
    asked = alignment / best[truth] * highest[truth]
    return Assigned(rows[wanted], places[wanted], classes[wanted], boxes[wanted], asked)


def alignment_of(
    scores: torch.Tensor, overlaps: torch.Tensor, anchors: torch.Tensor, boxes: torch.Tensor, settings: Alignment
) -> torch.Tensor:
    """How well an anchor does on an object: above 0; of two that do nothing the nearer does better."""
    away = (anchors[..., :2] - (boxes[..., :2] + boxes[..., 2:]) / 2).abs().sum(dim=-1)
    return scores**settings.alpha * overlaps**settings.beta + NUDGE / (1 + away)


def _best_of_each(values: torch.Tensor, groups: torch.Tensor, num_groups: int, count: int) -> torch.Tensor:
    """Where the largest values of each group stand, up to `count` of each; of equal ones those that come first."""
    order = values.argsort(descending=True, stable=True)
    order = order[groups[order].argsort(stable=True)]
    sizes = torch.bincount(groups, minlength=num_groups)
    ranks = torch.arange(len(order), device=order.device) - (sizes.cumsum(0) - sizes)[groups[order]]
    return order[ranks < count]
