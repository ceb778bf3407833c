"""Which anchors learn which object: those where the model is already best at it, by class and by overlap together.

Of the anchors inside an object, the `topk` with the largest `score ** alpha * overlap ** beta` learn it; an anchor that two
objects want goes to the one it overlaps most. The best anchor of an object is asked for a score as high as its overlap, the
others for less in proportion, so that scores come to rank boxes by how well they lie.

Two things differ from the paper, both for small objects. An object narrower than the finest stride may hold no anchor: its
sides are widened to a little more than that stride before anchors are looked for. And as long as no box overlaps an object,
all anchors in it are equally bad: the nearest are taken then, and asked for `least_overlap`, so that something is learnt.

Source: Feng et al. 2021, TOOD: Task-aligned One-stage Object Detection (https://arxiv.org/abs/2108.07755).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

NUDGE = 1e-20
"""What nearness adds to the alignment: less than any alignment that means something."""
TINY = 1e-30


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
    """What each anchor is to say.

    Attributes:
        scores: float32 `[batch, anchors, classes]`, from 0 to 1; zero where an anchor learns no object.
        boxes: float32 `[batch, anchors, 4]`; of no meaning there.
        foreground: bool `[batch, anchors]`, whether it learns one.
    """

    scores: torch.Tensor
    boxes: torch.Tensor
    foreground: torch.Tensor


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


def pair_overlaps(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Intersection over union of each of `[..., n, 4]` with each of `[..., m, 4]`: `[..., n, m]`, from 0 to 1."""
    a, b = first[..., :, None, :], second[..., None, :, :]
    width = (torch.minimum(a[..., 2], b[..., 2]) - torch.maximum(a[..., 0], b[..., 0])).clamp(min=0)
    height = (torch.minimum(a[..., 3], b[..., 3]) - torch.maximum(a[..., 1], b[..., 1])).clamp(min=0)
    both = width * height
    area_a = (a[..., 2] - a[..., 0]) * (a[..., 3] - a[..., 1])
    area_b = (b[..., 2] - b[..., 0]) * (b[..., 3] - b[..., 1])
    return both / (area_a + area_b - both).clamp(min=1e-9)


@torch.no_grad()
def assign(
    scores: torch.Tensor, boxes: torch.Tensor, anchors: torch.Tensor, truths: Truths, settings: Alignment | None = None
) -> Assigned:
    """Choose the anchors of each object, for all pictures and objects at once.

    Args:
        scores: `[batch, anchors, classes]`, from 0 to 1.
        boxes: `[batch, anchors, 4]`, in pixels.
        anchors: `[anchors, 3]`: centre x, centre y, stride.
        truths: The objects.
        settings: As `Alignment` has it unless given.
    """
    settings = settings or Alignment()
    most = truths.valid.shape[1]
    inside, nearness = _places(anchors, truths.boxes, settings.least_side)
    inside &= truths.valid[:, :, None]
    overlaps = pair_overlaps(truths.boxes, boxes)
    own = scores.transpose(1, 2).gather(1, truths.classes[:, :, None].expand(-1, -1, scores.shape[1]))
    alignment = own**settings.alpha * overlaps**settings.beta + NUDGE * nearness

    best = torch.where(inside, alignment, -1.0).topk(min(settings.topk, len(anchors)), dim=2)
    wanted = torch.zeros_like(inside).scatter_(2, best.indices, best.values > 0)
    owner = torch.where(wanted, overlaps, -1.0).argmax(dim=1)
    chosen = wanted & (torch.arange(most, device=owner.device)[None, :, None] == owner[:, None, :])

    alignment = torch.where(chosen, alignment, 0.0)
    highest = torch.where(chosen, overlaps, 0.0).amax(dim=2, keepdim=True).clamp(min=settings.least_overlap)
    asked = (alignment / alignment.amax(dim=2, keepdim=True).clamp(min=TINY) * highest).amax(dim=1)

    targets = torch.zeros(scores.shape, device=scores.device)
    targets.scatter_(2, truths.classes.gather(1, owner)[:, :, None], asked[:, :, None])
    return Assigned(targets, truths.boxes.gather(1, owner[:, :, None].expand(-1, -1, 4)), chosen.any(dim=1))


@torch.no_grad()
def assign_naive(
    scores: torch.Tensor,
    boxes: torch.Tensor,
    anchors: torch.Tensor,
    targets: torch.Tensor,
    settings: Alignment | None = None,
) -> Assigned:
    """The same, picture by picture and object by object.

    Args:
        scores: As for `assign`.
        boxes: Likewise.
        anchors: Likewise.
        targets: As for `pad_truths`.
        settings: As `Alignment` has it unless given.
    """
    settings = settings or Alignment()
    asked = torch.zeros(scores.shape, device=scores.device)
    whose = torch.zeros(boxes.shape, device=boxes.device)
    foreground = torch.zeros(boxes.shape[:2], dtype=torch.bool, device=boxes.device)
    for row in range(len(scores)):
        objects = targets[targets[:, 0] == row]
        owners: dict[int, tuple[float, int]] = {}  # anchor -> the overlap and the number of the object that has it
        aligned: list[dict[int, tuple[float, float]]] = []  # per object, anchor -> alignment and overlap
        for number, one in enumerate(objects):
            aligned.append(_wanted(scores[row, :, int(one[1])], boxes[row], anchors, one[2:], settings))
            for anchor, (_, overlap) in aligned[-1].items():
                if anchor not in owners or overlap > owners[anchor][0]:
                    owners[anchor] = overlap, number
        for number, one in enumerate(objects):
            mine = {anchor: two for anchor, two in aligned[number].items() if owners[anchor][1] == number}
            highest = max([overlap for _, overlap in mine.values()] + [settings.least_overlap])
            best = max([alignment for alignment, _ in mine.values()] + [TINY])
            for anchor, (alignment, _) in mine.items():
                asked[row, anchor, int(one[1])] = alignment / best * highest
                whose[row, anchor] = one[2:]
                foreground[row, anchor] = True
    return Assigned(asked, whose, foreground)


def _wanted(
    scores: torch.Tensor, boxes: torch.Tensor, anchors: torch.Tensor, one: torch.Tensor, settings: Alignment
) -> dict[int, tuple[float, float]]:
    """The anchors that one object of a picture wants, each with its alignment and its overlap."""
    inside, nearness = _places(anchors, one[None], settings.least_side)
    overlaps = pair_overlaps(one[None], boxes)[0]
    alignment = scores**settings.alpha * overlaps**settings.beta + NUDGE * nearness[0]
    places = inside[0].nonzero()[:, 0]
    best = places[alignment[places].argsort(descending=True)[: settings.topk]]
    return {int(anchor): (float(alignment[anchor]), float(overlaps[anchor])) for anchor in best}


def _places(anchors: torch.Tensor, boxes: torch.Tensor, least_side: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Of boxes `[..., n, 4]`, whether each anchor lies in each, and how near its middle (above 0, up to 1).

    Both are `[..., n, anchors]`.
    """
    middles = (boxes[..., :2] + boxes[..., 2:]) / 2
    halves = (boxes[..., 2:] - boxes[..., :2]).clamp(min=least_side) / 2
    away = anchors[:, :2] - middles[..., None, :]
    inside = (away.abs() < halves[..., None, :]).all(dim=-1)
    return inside, 1.0 / (1.0 + away.norm(dim=-1))
