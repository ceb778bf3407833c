"""Outlines from probability maps: curved lines, and their matches counted with shapely."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from hasten.recipes.ocr.maps import MapSettings, PolygonArray, make_maps
from hasten.recipes.ocr.metrics import Counts, count_matches, count_texts
from hasten.recipes.ocr.postprocess import BoxSettings, find_outlines, find_texts

SIZE = (320, 320)


def arches(*, bend: float) -> PolygonArray:
    """Return four lines that rise and fall by `bend` times their height."""
    along = np.linspace(0, 1, 8)
    lines = []
    for number in range(4):
        width, height = 260.0 - 30 * number, 26.0
        drop = bend * height * np.sin(np.pi * along)
        upper = np.stack([20 + width * along, 12 + 75 * number + drop], axis=1)
        lines.append(np.concatenate([upper, upper[::-1] + np.asarray((0, height))]).astype(np.float32))
    return PolygonArray.from_list(lines)


def perfect(truth: PolygonArray, ratio: float = 0.4) -> npt.NDArray[np.float32]:
    return make_maps(truth, SIZE, MapSettings(shrink_ratio=ratio, min_text_size=3)).shrink.astype(np.float32)


@pytest.mark.parametrize("bend", [0.0, 0.5, 1.0, 1.6])
@pytest.mark.parametrize("ratio", [0.4, 0.6])
def test_bent_lines_of_perfect_maps_are_the_labels(bend: float, ratio: float) -> None:
    truth = arches(bend=bend)
    found = find_outlines(perfect(truth, ratio), BoxSettings(min_side=1.0, shrink_ratio=ratio))
    assert count_matches(found.polygons, truth) == Counts(4, 4, 4)
    tops = [shape[:, 1].min() for shape in sorted(found.shapes, key=lambda shape: float(shape[:, 1].min()))]
    np.testing.assert_allclose(tops, [12, 87, 162, 237], atol=6)


def test_rectangles_miss_what_outlines_find() -> None:
    truth = arches(bend=1.6)
    matched = {}
    for outlines in (False, True):
        texts = find_texts(perfect(truth), BoxSettings(min_side=1.0, outlines=outlines))
        matched[outlines] = count_texts(texts, truth).matched
    assert matched == {False: 0, True: 4}


def test_nothing_found_and_nothing_to_find() -> None:
    none, some = PolygonArray.from_list([]), arches(bend=0.5)
    assert count_matches(none, some) == Counts(0, 4, 0)
    assert count_matches(some, none) == Counts(0, 0, 4)
    assert count_matches(none, none) == Counts(0, 0, 0)
    assert find_outlines(np.zeros(SIZE, dtype=np.float32), BoxSettings()).shapes == []


def test_an_outline_that_crosses_itself_is_counted_by_what_it_covers() -> None:
    bow_tie = PolygonArray.from_list([[(0, 0), (20, 20), (20, 0), (0, 20)]])
    square = PolygonArray.from_list([[(0, 0), (20, 0), (20, 20), (0, 20)]])
    assert count_matches(bow_tie, square) == Counts(1, 1, 1)  # half of the square, and all of the bow


def test_specks_weak_patches_and_the_sure_ones_first() -> None:
    probability = np.zeros((96, 96), dtype=np.float32)
    probability[4, 4:60] = 1  # one pixel thin
    probability[12:24, 4:60] = 0.4
    probability[32:44, 4:60] = 0.7
    probability[56:68, 4:60] = 0.9
    found = find_outlines(probability, BoxSettings(min_side=1.0))
    assert found.scores == pytest.approx([0.9, 0.7])
    assert [shape[:, 1].mean() > 50 for shape in found.shapes] == [True, False]
