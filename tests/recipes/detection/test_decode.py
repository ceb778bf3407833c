"""Conversion of distances to boxes, and suppression of all but the best box of an object."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pytest
import torch

from hasten.recipes.detection.decode import Candidates, Suppression, candidates, decode_boxes, suppress
from hasten.recipes.detection.naive import suppress_naive

LOUD = 50.0
Way = Callable[..., list[npt.NDArray[np.float32]]]


def found(boxes: Sequence[Sequence[float]], scores: list[float], classes: list[int]) -> Candidates:
    return Candidates(
        np.array([boxes], np.float32).reshape(1, -1, 4), np.array([scores], np.float32), np.array([classes], np.int64)
    )


def random_candidates(seed: int, count: int = 200) -> Candidates:
    random = np.random.default_rng(seed)
    corners = random.uniform(0, 60, (3, count, 2))
    boxes = np.concatenate([corners, corners + random.uniform(2, 40, (3, count, 2))], axis=2).astype(np.float32)
    scores = -np.sort(-random.uniform(0, 1, (3, count)).astype(np.float32), axis=1)
    return Candidates(boxes, scores, random.integers(0, 3, (3, count)))


def test_a_distance_is_counted_in_strides_from_the_anchor() -> None:
    distances = torch.zeros(1, 2, 4, 8)
    for side, steps in enumerate((1, 2, 3, 4)):
        distances[0, :, side, steps] = LOUD
    anchors = torch.tensor([[100.0, 60.0, 8.0], [100.0, 60.0, 16.0]])
    boxes = decode_boxes(distances.flatten(2), anchors)
    assert boxes[0].tolist() == [[92.0, 44.0, 124.0, 92.0], [84.0, 28.0, 148.0, 124.0]]


def test_a_distance_between_two_steps_is_their_mean() -> None:
    distances = torch.full((1, 4, 8), -LOUD)
    distances[:, :, 2:4] = 0.0
    assert decode_boxes(distances.flatten(1), torch.tensor([[0.0, 0.0, 8.0]]))[0].tolist() == [-20.0, -20.0, 20.0, 20.0]


def test_boxes_are_as_exact_under_autocast() -> None:
    distances = torch.randn(1, 5, 32, generator=torch.Generator().manual_seed(0))
    anchors = torch.tensor([[160.0, 160.0, 32.0]])
    with torch.autocast("cpu", torch.bfloat16):
        under = decode_boxes(distances, anchors)
    assert torch.equal(under, decode_boxes(distances, anchors))


def test_candidates_are_the_best_pairs_of_box_and_class() -> None:
    boxes = torch.arange(12.0).view(1, 3, 4)
    scores = torch.tensor([[[0.1, 0.9], [0.5, 0.2], [0.3, 0.8]]])
    best = candidates(boxes, scores, Suppression(max_candidates=4))
    assert best.scores[0].tolist() == pytest.approx([0.9, 0.8, 0.5, 0.3])
    assert best.classes[0].tolist() == [1, 1, 0, 0]
    assert best.boxes[0, :, 0].tolist() == [0.0, 8.0, 4.0, 8.0]


@pytest.mark.parametrize("way", [suppress, suppress_naive])
def test_of_boxes_that_overlap_the_best_stays(way: Way) -> None:
    boxes = [[0, 0, 10, 10], [1, 0, 11, 10], [20, 20, 30, 30], [0, 0, 10, 10]]
    some = found(boxes, [0.9, 0.8, 0.7, 0.6], [0, 0, 0, 1])
    kept = way(some, Suppression(max_iou=0.5))[0]
    assert kept.dtype == np.float32
    assert kept[:, 4].tolist() == pytest.approx([0.9, 0.7, 0.6])  # the last belongs to another class
    assert kept[:, 5].tolist() == [0, 0, 1]
    assert kept[0, :4].tolist() == [0, 0, 10, 10]


@pytest.mark.parametrize("way", [suppress, suppress_naive])
def test_a_box_that_a_suppressed_one_overlaps_stays(way: Way) -> None:
    chain = [[0, 0, 10, 10], [4, 0, 14, 10], [8, 0, 18, 10]]
    kept = way(found(chain, [0.9, 0.8, 0.7], [0, 0, 0]), Suppression(max_iou=0.3))[0]
    assert kept[:, 4].tolist() == pytest.approx([0.9, 0.7])


@pytest.mark.parametrize("way", [suppress, suppress_naive])
def test_low_scores_and_what_is_too_much_are_left_out(way: Way) -> None:
    apart = [[x, 0, x + 5, 5] for x in (0, 10, 20, 30)]
    some = found(apart, [0.9, 0.5, 0.25, 0.1], [0, 0, 0, 0])
    assert len(way(some, Suppression(min_score=0.25))[0]) == 3
    assert len(way(some, Suppression(max_boxes=2))[0]) == 2
    assert way(some, Suppression(min_score=0.95))[0].shape == (0, 6)


@pytest.mark.parametrize("way", [suppress, suppress_naive])
def test_boxes_without_area_are_no_trouble(way: Way) -> None:
    kept = way(found([[5, 5, 5, 5], [5, 5, 5, 5]], [0.9, 0.8], [0, 0]))[0]
    assert len(kept) == 2


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("max_iou", [0.2, 0.5, 0.7])
def test_both_ways_keep_the_same_boxes(seed: int, max_iou: float) -> None:
    some, settings = random_candidates(seed), Suppression(max_iou=max_iou)
    for fast, naive in zip(suppress(some, settings), suppress_naive(some, settings), strict=True):
        assert np.array_equal(fast, naive)
        assert 0 < len(fast) < 200
