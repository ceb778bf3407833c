"""Matching of boxes and labels: cases counted by hand, and the fast implementation against the naive one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pytest

from hasten.recipes.ocr.maps import PolygonArray
from hasten.recipes.ocr.metrics import Counts, count_matches
from hasten.recipes.ocr.naive import naive_counts

Count: TypeAlias = Callable[[npt.NDArray[np.float32], PolygonArray], Counts]


def by_index(boxes: npt.NDArray[np.float32], truth: PolygonArray) -> Counts:
    return count_matches(PolygonArray.from_list(list(boxes)), truth)


WAYS: list[Count] = [naive_counts, by_index]


def box(left: float, top: float, right: float, bottom: float) -> list[tuple[float, float]]:
    return [(left, top), (right, top), (right, bottom), (left, bottom)]


def found(*boxes: Sequence[tuple[float, float]]) -> npt.NDArray[np.float32]:
    return np.asarray(boxes, dtype=np.float32).reshape(-1, 4, 2)


def labels(*polygons: Sequence[tuple[float, float]], ignored: Sequence[bool] = ()) -> PolygonArray:
    return PolygonArray.from_list(
        [np.asarray(one, dtype=np.float32) for one in polygons], list(ignored) or [False] * len(polygons)
    )


@pytest.mark.parametrize("count", WAYS)
def test_half_of_the_union_is_a_match_and_less_is_none(count: Count) -> None:
    truth = labels(box(0, 0, 20, 10))
    assert count(found(box(0, 0, 10, 10)), truth) == Counts(1, 1, 1)
    assert count(found(box(0, 0, 9.9, 10)), truth) == Counts(0, 1, 1)
    assert count(found(box(5, 0, 25, 10)), truth) == Counts(1, 1, 1)


@pytest.mark.parametrize("count", WAYS)
def test_each_box_and_each_label_match_once(count: Count) -> None:
    truth = labels(box(0, 0, 20, 10))
    assert count(found(box(0, 0, 20, 10), box(0, 0, 20, 11)), truth) == Counts(1, 1, 2)
    two = labels(box(0, 0, 20, 10), box(0, 0, 20, 10.5))
    assert count(found(box(0, 0, 20, 10)), two) == Counts(1, 2, 1)


@pytest.mark.parametrize("count", WAYS)
def test_what_is_ignored_counts_for_nothing(count: Count) -> None:
    truth = labels(box(0, 0, 20, 10), box(40, 0, 60, 10), ignored=[False, True])
    on_it, outside = box(41, 1, 49, 9), box(55, 0, 65, 10)
    assert count(found(on_it), truth) == Counts(0, 1, 0)
    assert count(found(outside), truth) == Counts(0, 1, 1)  # half of it is on the label, which is not enough
    assert count(found(box(0, 0, 20, 10), on_it, outside), truth) == Counts(1, 1, 2)


@pytest.mark.parametrize("count", WAYS)
def test_a_box_that_matches_and_lies_on_an_ignored_label_is_left_out(count: Count) -> None:
    truth = labels(box(0, 0, 20, 10), box(0, 0, 20, 12), ignored=[False, True])
    assert count(found(box(0, 0, 20, 10)), truth) == Counts(0, 1, 0)


@pytest.mark.parametrize("count", WAYS)
def test_nothing_found_and_nothing_to_find(count: Count) -> None:
    assert count(found(), labels(box(0, 0, 9, 9))) == Counts(0, 1, 0)
    assert count(found(box(0, 0, 9, 9)), labels()) == Counts(0, 0, 1)
    assert count(found(), labels()) == Counts(0, 0, 0)


@pytest.mark.parametrize("count", WAYS)
def test_boxes_that_go_the_other_way_round_count_the_same(count: Count) -> None:
    truth = labels(box(0, 0, 20, 10))
    assert count(found(box(0, 0, 20, 10)[::-1]), truth) == Counts(1, 1, 1)


@pytest.mark.parametrize("count", WAYS)
def test_bent_labels_are_clipped_as_they_are(count: Count) -> None:
    arch = [(0, 20), (20, 0), (40, 20), (40, 30), (20, 10), (0, 30)]
    whole = box(0, 0, 40, 30)  # the arch covers 400 of its 1,200 square pixels
    assert count(found(whole), labels(arch)) == Counts(0, 1, 1)
    most = [(0, 20), (22, -2), (22, 8), (0, 30)]  # along one of its two legs: IoU 216 / 404
    less = [(0, 20), (16, 4), (16, 14), (0, 30)]  # IoU 160 / 400
    assert count(np.asarray([most], dtype=np.float32), labels(arch)) == Counts(1, 1, 1)
    assert count(np.asarray([less], dtype=np.float32), labels(arch)) == Counts(0, 1, 1)


def test_both_ways_count_equally_on_many_random_pages() -> None:
    rng = np.random.default_rng(0)
    total = Counts(0, 0, 0)
    for _ in range(60):
        middles = rng.uniform(20, 180, (12, 2))
        polygons, boxes = [], []
        for middle in middles:
            angle, half = rng.uniform(0, np.pi), rng.uniform(4, 25, 2)
            turn = np.asarray([(np.cos(angle), np.sin(angle)), (-np.sin(angle), np.cos(angle))])
            corners = np.asarray(box(-1, -1, 1, 1)) * half @ turn + middle
            boxes.append((corners + rng.normal(0, 3)).astype(np.float32))
            many = np.linspace(0, 2 * np.pi, 12, endpoint=False)
            bent = np.stack([np.cos(many), np.sin(many)], axis=1) * half * rng.uniform(0.5, 1.4, (12, 1)) @ turn + middle
            polygons.append(bent if rng.random() < 0.4 else corners)
        truth = PolygonArray.from_list([np.asarray(one, np.float32) for one in polygons], (rng.random(12) < 0.2).tolist())
        ours, plain = by_index(np.asarray(boxes), truth), naive_counts(np.asarray(boxes), truth)
        assert ours == plain
        total += ours
    assert total.matched > 100
    assert 0 < total.hmean < 1


def test_hmean_is_the_harmonic_mean_of_precision_and_recall() -> None:
    counts = Counts(matched=6, num_truth=10, num_found=8)
    precision, recall = 6 / 8, 6 / 10
    assert counts.hmean == pytest.approx(2 * precision * recall / (precision + recall))
    assert Counts(0, 0, 0).hmean == 0
