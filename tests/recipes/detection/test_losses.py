"""The losses match values computed by hand and the naive form with its gradients, and sum exactly over parts."""

from __future__ import annotations

import math

import pytest
import torch

from hasten.recipes.detection.decode import candidates, decode_boxes
from hasten.recipes.detection.evaluate import mean_average_precision
from hasten.recipes.detection.losses import (
    Weights,
    complete_overlap,
    detection_loss,
    distance_loss,
)
from hasten.recipes.detection.model import Output, anchor_points
from hasten.recipes.detection.naive import detection_loss_naive, suppress_naive

NUM_BINS, NUM_CLASSES = 8, 3
ANCHORS = anchor_points([(8, 8), (4, 4), (2, 2)], torch.device("cpu"))
TARGETS = torch.tensor(
    [[0, 1, 8, 8, 30, 40], [0, 2, 33, 5, 60, 20], [1, 0, 20, 20, 22, 21], [3, 1, 0, 0, 64, 64], [3, 1, 3, 40, 18, 62]]
).float()
NO_TARGETS = torch.zeros(0, 6)


def output(batch: int = 4, seed: int = 0) -> Output:
    random = torch.Generator().manual_seed(seed)
    distances = torch.randn(batch, len(ANCHORS), 4 * NUM_BINS, generator=random)
    logits = torch.randn(batch, len(ANCHORS), NUM_CLASSES, generator=random) - 2
    return Output(distances.requires_grad_(), logits.requires_grad_(), ANCHORS)


def test_a_box_overlaps_itself_completely() -> None:
    box = torch.tensor([[3.0, 4.0, 9.0, 20.0]])
    assert complete_overlap(box, box).tolist() == pytest.approx([1.0], abs=1e-5)


def test_boxes_apart_are_reported_how_far() -> None:
    first, second = torch.tensor([[0.0, 0.0, 2.0, 2.0]]), torch.tensor([[2.0, 0.0, 4.0, 2.0]])
    assert complete_overlap(first, second).tolist() == pytest.approx([-4 / 20])


def test_boxes_of_another_shape_are_reported_so() -> None:
    wide, high = torch.tensor([[0.0, 0.0, 4.0, 2.0]]), torch.tensor([[0.0, 0.0, 2.0, 4.0]])
    shape = 4 / math.pi**2 * (math.atan(0.5) - math.atan(2)) ** 2
    overlap, apart = 4 / 12, 2 / 32
    expected = overlap - apart - shape * shape / (1 - overlap + shape)
    assert complete_overlap(wide, high).tolist() == pytest.approx([expected], rel=1e-5)


def test_distances_that_say_nothing_cost_the_logarithm_of_their_number() -> None:
    cost = distance_loss(
        torch.zeros(1, 4 * NUM_BINS), torch.tensor([[10.0, 20.0, 50.0, 60.0]]), torch.tensor([[32.0, 32, 8]])
    )
    assert cost.tolist() == pytest.approx([math.log(NUM_BINS)], rel=1e-6)


def test_distances_are_best_between_the_two_bins_they_lie_between() -> None:
    anchors, box = torch.tensor([[32.0, 32.0, 8.0]]), torch.tensor([[12.0, 12.0, 52.0, 52.0]])  # 2.5 strides each way
    between = torch.full((1, 4, NUM_BINS), -50.0)
    between[:, :, 2:4] = 0.0
    assert distance_loss(between.flatten(1), box, anchors).tolist() == pytest.approx([math.log(2)], rel=1e-5)
    sharp = torch.full((1, 4, NUM_BINS), -50.0)
    sharp[:, :, 2] = 0.0
    assert float(distance_loss(sharp.flatten(1), box, anchors)[0]) > 10


def test_a_distance_beyond_the_last_bin_is_the_last() -> None:
    anchors, box = torch.tensor([[32.0, 32.0, 8.0]]), torch.tensor([[-500.0, -500.0, 600.0, 600.0]])
    last = torch.full((1, 4, NUM_BINS), -50.0)
    last[:, :, -1] = 50.0
    assert math.isfinite(float(distance_loss(last.flatten(1), box, anchors)[0]))


def test_a_model_that_says_what_is_there_pays_nothing_for_boxes() -> None:
    distances = torch.full((1, len(ANCHORS), 4, NUM_BINS), -50.0)
    distances[:, :, :, 2] = 50.0  # every side is 2 strides away: boxes of 4 strides
    logits = torch.full((1, len(ANCHORS), NUM_CLASSES), -50.0)
    x, y, stride = ANCHORS[27].tolist()
    target = torch.tensor([[0, 1, x - 2 * stride, y - 2 * stride, x + 2 * stride, y + 2 * stride]])
    logits[0, 27, 1] = 50.0
    parts = detection_loss(Output(distances.flatten(2), logits, ANCHORS), target)
    others = float(parts.weight) - 1.0  # the boxes of the other anchors inside fit less well
    assert float(parts.classes) < 1e-3 + 60 * others
    assert others < 0.01
    assert float(parts.boxes) < 0.02
    assert float(parts.distances) < 1.0


@pytest.mark.parametrize("targets", [TARGETS, NO_TARGETS, TARGETS[[3]]])
def test_both_ways_give_the_same_loss_and_gradients(targets: torch.Tensor) -> None:
    fast, naive = output(), output()
    mine, theirs = detection_loss(fast, targets), detection_loss_naive(naive, targets)
    for ours, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(ours, other, rtol=1e-5, atol=1e-5)
    mine.total().backward()
    theirs.total().backward()
    torch.testing.assert_close(fast.logits.grad, naive.logits.grad, rtol=1e-4, atol=1e-6)
    naive_grad = torch.zeros_like(naive.distances) if naive.distances.grad is None else naive.distances.grad
    fast_grad = torch.zeros_like(fast.distances) if fast.distances.grad is None else fast.distances.grad
    torch.testing.assert_close(fast_grad, naive_grad, rtol=1e-4, atol=1e-6)


def test_a_batch_without_objects_learns_that_there_are_none() -> None:
    some = output()
    parts = detection_loss(some, NO_TARGETS)
    assert [float(part.detach()) for part in parts[1:]] == [0.0, 0.0, 1.0]
    parts.total().backward()
    assert some.logits.grad is not None
    assert bool((some.logits.grad > 0).all())


def test_the_loss_of_a_batch_is_the_sum_over_its_parts() -> None:
    whole = output()
    targets = TARGETS[TARGETS[:, 0] != 1]
    together = detection_loss(whole, targets)
    parts = []
    for row in range(4):
        mine = targets[targets[:, 0] == row].clone()
        mine[:, 0] = 0
        one = Output(whole.distances[row : row + 1], whole.logits[row : row + 1], ANCHORS)
        parts.append(detection_loss(one, mine))
    for place in range(3):
        assert float(together[place].detach()) == pytest.approx(sum(float(part[place].detach()) for part in parts), rel=1e-4)


def test_weights_say_how_much_each_part_counts() -> None:
    parts = detection_loss(output(), TARGETS)
    total = parts.total(Weights(classes=1.0, boxes=2.0, distances=3.0))
    expected = parts.classes + 2 * parts.boxes + 3 * parts.distances
    torch.testing.assert_close(total, expected)
    torch.testing.assert_close(parts.total(), 0.5 * parts.classes + 7.5 * parts.boxes + 1.5 * parts.distances)


def test_free_maps_learn_to_say_what_is_there() -> None:
    maps = output()
    optimizer = torch.optim.Adam([maps.distances, maps.logits], lr=0.1)
    for _ in range(150):
        parts = detection_loss(maps, TARGETS)
        optimizer.zero_grad()
        (parts.total() / parts.weight).backward()
        optimizer.step()
    with torch.no_grad():
        boxes = decode_boxes(maps.distances, ANCHORS)
        found = suppress_naive(candidates(boxes, maps.logits.sigmoid()))
    there = TARGETS.numpy()
    images = [(mine, there[there[:, 0] == row, 1:]) for row, mine in enumerate(found)]
    learnt = mean_average_precision(images, NUM_CLASSES)
    assert learnt["map50"] > 0.99
    assert learnt["map"] > 0.9
