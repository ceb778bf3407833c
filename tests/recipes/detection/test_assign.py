"""Anchor assignment: both implementations agree, and every object gets an anchor."""

from __future__ import annotations

import pytest
import torch

from hasten.recipes.detection.assign import Alignment, Assigned, Look, assign, overlaps_of, pad_truths
from hasten.recipes.detection.model import anchor_points
from hasten.recipes.detection.naive import assign_naive

SIDE, NUM_CLASSES = 64, 3
ANCHORS = anchor_points([(8, 8), (4, 4), (2, 2)], torch.device("cpu"))


def predictions(batch: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    scores = torch.rand(batch, len(ANCHORS), NUM_CLASSES, generator=random)
    sides = torch.rand(batch, len(ANCHORS), 4, generator=random) * 2 * ANCHORS[:, 2:]
    return scores, torch.cat([ANCHORS[:, :2] - sides[..., :2], ANCHORS[:, :2] + sides[..., 2:]], dim=2)


def says(scores: torch.Tensor, boxes: torch.Tensor) -> Look:
    return lambda rows, places, classes: (scores[rows, places, classes], boxes[rows, places])


def same_score(boxes: torch.Tensor) -> Look:
    return says(torch.full((1, len(ANCHORS), NUM_CLASSES), 0.25), boxes)


def chosen(asked: Assigned) -> dict[int, list[float]]:
    """Return the targets of one image: anchor -> class and target score."""
    return {
        int(place): [float(kind), float(score)]
        for place, kind, score in zip(asked.places, asked.classes, asked.scores, strict=True)
    }


def objects(batch: int, each: int, seed: int = 0, largest: float = 30.0) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    count = batch * each
    sides = 1 + torch.rand(count, 2, generator=random) * largest
    corners = torch.rand(count, 2, generator=random) * (SIDE - sides)
    rows = torch.randint(batch, (count, 1), generator=random).float()  # unordered, with a different number in each image
    classes = torch.randint(NUM_CLASSES, (count, 1), generator=random).float()
    return torch.cat([rows, classes, corners, corners + sides], dim=1)


def test_objects_are_laid_out_by_image_in_any_order() -> None:
    targets = torch.tensor([[2, 1, 0, 0, 4, 4], [0, 2, 1, 1, 5, 5], [2, 0, 2, 2, 6, 6]], dtype=torch.float32)
    truths = pad_truths(targets, 4)
    assert truths.valid.tolist() == [[True, False], [False, False], [True, True], [False, False]]
    assert truths.classes[2].tolist() == [1, 0]
    assert truths.boxes[0, 0].tolist() == [1, 1, 5, 5]
    assert truths.boxes[2].tolist() == [[0, 0, 4, 4], [2, 2, 6, 6]]


def test_a_batch_without_objects_asks_for_nothing() -> None:
    look, nothing = says(*predictions(2)), torch.zeros(0, 6)
    for asked in (assign(look, ANCHORS, pad_truths(nothing, 2)), assign_naive(look, ANCHORS, nothing, 2)):
        assert [tuple(part.shape) for part in asked] == [(0,), (0,), (0,), (0, 4), (0,)]


def test_overlaps_are_intersection_over_union() -> None:
    first = torch.tensor([[0.0, 0.0, 4.0, 4.0], [0.0, 0.0, 4.0, 4.0], [10.0, 10.0, 12.0, 12.0]])
    second = torch.tensor([[2.0, 0.0, 6.0, 4.0], [0.0, 0.0, 4.0, 4.0], [0.0, 0.0, 4.0, 4.0]])
    assert overlaps_of(first, second).tolist() == pytest.approx([8 / 24, 1.0, 0.0])


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("largest", [4.0, 30.0, 60.0])
def test_both_ways_choose_the_same_anchors(seed: int, largest: float) -> None:
    look, targets = says(*predictions(3, seed)), objects(3, 6, seed, largest)
    fast, naive = assign(look, ANCHORS, pad_truths(targets, 3)), assign_naive(look, ANCHORS, targets, 3)
    assert len(fast.rows) > 0
    for mine, other in zip(fast[:4], naive[:4], strict=True):
        assert torch.equal(mine, other)
    torch.testing.assert_close(fast.scores, naive.scores)


@pytest.mark.parametrize("seed", range(3))
def test_an_anchor_learns_one_object_at_most_and_they_come_in_order(seed: int) -> None:
    targets = objects(3, 12, seed, 60.0)
    asked = assign(says(*predictions(3, seed)), ANCHORS, pad_truths(targets, 3))
    spots = (asked.rows * len(ANCHORS) + asked.places).tolist()
    assert spots == sorted(set(spots))
    assert float(asked.scores.max()) <= 1.0
    assert float(asked.scores.min()) >= 0.0


def test_an_object_gets_the_anchors_where_score_and_overlap_are_best() -> None:
    truth = torch.tensor([[0, 1, 8.0, 8.0, 24.0, 24.0]])
    boxes = torch.zeros(1, len(ANCHORS), 4)
    inside = [9, 10, 17, 18]  # the fine anchors at (12, 12), (20, 12), (12, 20), (20, 20)
    boxes[0, inside] = torch.tensor([[8.0, 8, 24, 24], [8, 8, 24, 16], [8, 8, 24, 20], [8, 8, 12, 12]])
    asked = assign(same_score(boxes), ANCHORS, pad_truths(truth, 1), Alignment(topk=2))
    assert asked.boxes.tolist() == [[8, 8, 24, 24], [8, 8, 24, 24]]
    # The target score of the best is its overlap; the next gets less because its alignment is smaller.
    assert list(chosen(asked)) == [9, 17]
    assert chosen(asked)[9] == pytest.approx([1.0, 1.0])
    assert chosen(asked)[17] == pytest.approx([1.0, 0.75**6])


def test_an_anchor_that_two_objects_want_goes_to_the_one_it_overlaps_most() -> None:
    truths = torch.tensor([[0, 0, 8.0, 8.0, 24.0, 24.0], [0, 1, 10.0, 8.0, 26.0, 24.0]])
    boxes = torch.zeros(1, len(ANCHORS), 4)
    boxes[0, 9] = truths[1, 2:]
    look = same_score(boxes)
    for asked in (assign(look, ANCHORS, pad_truths(truths, 1)), assign_naive(look, ANCHORS, truths, 1)):
        assert chosen(asked)[9] == pytest.approx([1.0, 1.0])
        assert asked.boxes[asked.places == 9].tolist() == [truths[1, 2:].tolist()]


@pytest.mark.parametrize("middle", [(8.0, 8.0), (32.0, 32.0), (4.0, 4.0), (0.5, 0.5), (63.5, 63.5), (16.0, 33.3)])
def test_an_object_that_covers_no_anchor_gets_one_all_the_same(middle: tuple[float, float]) -> None:
    x, y = middle
    truth = torch.tensor([[0, 2, x - 0.5, y - 0.5, x + 0.5, y + 0.5]])
    nowhere = torch.full((1, len(ANCHORS), 4), 1000.0)  # no box overlaps anything
    asked = assign(same_score(nowhere), ANCHORS, pad_truths(truth, 1))
    assert len(asked.places) >= 1
    assert float(asked.scores.max()) == pytest.approx(Alignment().least_overlap)
    assert float((ANCHORS[asked.places, :2] - torch.tensor(middle)).abs().max()) <= 4.25


def test_a_small_overlap_at_low_scores_is_still_asked_for_whole() -> None:
    truth = torch.tensor([[0, 0, 30.0, 30.0, 34.0, 34.0]])
    wide = torch.cat([ANCHORS[:, :2] - 20, ANCHORS[:, :2] + 20], dim=1)[None]
    look = says(torch.full((1, len(ANCHORS), NUM_CLASSES), 1e-4), wide)
    asked = assign(look, ANCHORS, pad_truths(truth, 1), Alignment(least_overlap=0.0))
    assert float(asked.scores.max()) == pytest.approx(16 / 1600, rel=1e-3)


def test_no_object_has_more_anchors_than_it_may() -> None:
    truth = torch.tensor([[0, 0, 0.0, 0.0, 64.0, 64.0]])
    assert len(assign(says(*predictions(1)), ANCHORS, pad_truths(truth, 1)).places) == 10
