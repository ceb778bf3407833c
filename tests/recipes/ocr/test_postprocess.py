"""Boxes from probability maps: generated maps, and the fast implementation against the naive one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import cv2
import numpy as np
import numpy.typing as npt
import pytest

from hasten.recipes.ocr.maps import MapSettings, PolygonArray, make_maps
from hasten.recipes.ocr.metrics import count_matches
from hasten.recipes.ocr.naive import naive_boxes
from hasten.recipes.ocr.postprocess import Boxes, BoxSettings, box_score, find_boxes, unclip_distance

Find: TypeAlias = Callable[[npt.NDArray[np.float32], BoxSettings], Boxes]
WAYS: list[Find] = [naive_boxes, find_boxes]
SETTINGS = BoxSettings(min_side=1.0)


def page(*, turned: bool, seed: int = 0) -> PolygonArray:
    """Return lines of text that do not touch."""
    rng = np.random.default_rng(seed)
    polygons = []
    for top in range(20, 300, 40):
        for left in (12, 170):
            width, height = rng.uniform(50, 130), rng.uniform(14, 24)
            corners = np.asarray([(0, 0), (width, 0), (width, height), (0, height)])
            angle = rng.uniform(-0.06, 0.06) if turned else 0.0
            turn = np.asarray([(np.cos(angle), np.sin(angle)), (-np.sin(angle), np.cos(angle))])
            polygons.append((corners @ turn + (left, top)).astype(np.float32))
    return PolygonArray.from_list(polygons, [False] * len(polygons))


@pytest.mark.parametrize("find", WAYS)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("ratio", [0.4, 0.6])
def test_boxes_of_perfect_maps_are_the_labels(find: Find, turned: bool, ratio: float) -> None:
    truth = page(turned=turned)
    maps = make_maps(truth, (320, 320), MapSettings(shrink_ratio=ratio, min_text_size=3))
    boxes = find(maps.shrink.astype(np.float32), BoxSettings(min_side=1.0, shrink_ratio=ratio))
    counts = count_matches(PolygonArray.from_list(boxes.shapes), truth)
    assert counts.hmean == 1
    assert (boxes.scores > 0.6).all()


@pytest.mark.parametrize("find", WAYS)
def test_an_upright_box_comes_back_to_two_pixels(find: Find) -> None:
    truth = PolygonArray.from_list([np.asarray([(20, 30), (120, 30), (120, 60), (20, 60)], np.float32)], [False])
    maps = make_maps(truth, (96, 160), MapSettings())
    (corners,) = find(maps.shrink.astype(np.float32), SETTINGS).corners
    np.testing.assert_allclose([corners.min(axis=0), corners.max(axis=0)], [(20, 30), (120, 60)], atol=2)


def test_both_ways_give_the_same_boxes_on_maps_as_networks_make_them() -> None:
    rng = np.random.default_rng(1)
    num_boxes = 0
    for seed in range(6):
        maps = make_maps(page(turned=True, seed=seed), (320, 320), MapSettings(min_text_size=3))
        rough = cv2.GaussianBlur(rng.normal(0, 1, (320, 320)), (0, 0), 2) * 0.8
        probability = np.clip(cv2.GaussianBlur(maps.shrink.astype(np.float32), (0, 0), 1.5) * 1.2 + rough, 0, 1).astype(
            np.float32
        )
        plain, fast = naive_boxes(probability, SETTINGS), find_boxes(probability, SETTINGS)
        assert len(plain.scores) == len(fast.scores)
        np.testing.assert_allclose(np.sort(plain.scores), np.sort(fast.scores), atol=1e-5)
        for corners in plain.corners:
            middle, span = corners.mean(axis=0), np.ptp(corners, axis=0)
            away = np.abs(fast.corners.mean(axis=1) - middle).max(axis=1)
            like = np.abs(np.ptp(fast.corners, axis=1) - span).max(axis=1)
            assert np.minimum(away + like, 9).min() < 0.1, (middle, span)
        num_boxes += len(plain.scores)
    assert num_boxes > 60


@pytest.mark.parametrize("find", WAYS)
def test_the_largest_patches_are_looked_at_first(find: Find) -> None:
    probability = np.zeros((200, 200), dtype=np.float32)
    for number, size in enumerate((12, 30, 20, 9, 25)):
        top = 5 + 38 * number
        probability[top : top + size, 10 : 10 + 2 * size] = 1
    boxes = find(probability, BoxSettings(max_boxes=2))
    tops = sorted(float(corners[:, 1].mean()) for corners in boxes.corners)
    assert tops == pytest.approx([43 + 14.5, 157 + 12], abs=0.1)


@pytest.mark.parametrize("find", WAYS)
def test_a_patch_inside_a_ring_is_found(find: Find) -> None:
    probability = np.zeros((120, 120), dtype=np.float32)
    cv2.rectangle(probability, (10, 10), (110, 110), 1.0, 3)
    probability[50:65, 40:80] = 1
    (corners,) = find(probability, SETTINGS).corners  # the ring's box is mostly empty
    np.testing.assert_allclose(corners.mean(axis=0), (59.5, 57), atol=0.1)


@pytest.mark.parametrize("find", WAYS)
def test_specks_and_weak_patches_are_no_text(find: Find) -> None:
    probability = np.zeros((64, 64), dtype=np.float32)
    probability[10, 10:50] = 1  # one pixel thin
    probability[20:30, 10:50] = 0.4
    probability[::7, 60] = 1
    assert len(find(probability, SETTINGS).corners) == 0
    assert find(np.zeros((64, 64), dtype=np.float32), SETTINGS).corners.shape == (0, 4, 2)


@pytest.mark.parametrize("find", WAYS)
def test_an_empty_map_and_a_full_one(find: Find) -> None:
    assert len(find(np.full((64, 64), 0.05, dtype=np.float32), SETTINGS).corners) == 0
    assert len(find(np.ones((64, 64), dtype=np.float32), SETTINGS).corners) == 1


def test_growing_undoes_shrinking() -> None:
    width, height, ratio = 120.0, 18.0, 0.4
    moved_in = width * height * (1 - ratio**2) / (2 * (width + height))
    inner = width - 2 * moved_in, height - 2 * moved_in
    settings = BoxSettings(shrink_ratio=ratio)
    assert unclip_distance(inner[0] * inner[1], 2 * sum(inner), settings) == pytest.approx(moved_in)
    assert unclip_distance(200, 60, BoxSettings(unclip_ratio=1.5)) == pytest.approx(5)
    assert unclip_distance(0, 0, settings) == 0


def test_the_score_is_the_mean_inside_the_box() -> None:
    probability = np.zeros((40, 40), dtype=np.float32)
    probability[10:20, 10:20] = 0.5
    corners = np.asarray([(10, 10), (19, 10), (19, 29), (10, 29)], dtype=np.float32)
    assert box_score(probability, corners) == pytest.approx(0.25)
    assert box_score(probability, corners + 100) == 0
    probability[10:20, :5] = 1
    assert box_score(probability, corners - (15, 0)) == pytest.approx(0.5)  # half of it is left of the map
