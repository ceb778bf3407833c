"""The target maps of the naive form: their values, and equality with the kernel's."""

from __future__ import annotations

import numpy as np
import pytest

from hasten.recipes.ocr.maps import MapSettings, PolygonArray, make_maps
from hasten.recipes.ocr.naive import edge_distance, naive_maps, shrink_distance
from hasten.recipes.ocr.synth import draw

BOX = np.asarray([(20, 20), (80, 20), (80, 50), (20, 50)], dtype=np.float32)


def one(corners: object = BOX, *, ignored: bool = False) -> PolygonArray:
    return PolygonArray.from_list([np.asarray(corners, dtype=np.float32)], [ignored])


def test_a_box_is_shrunk_by_area_over_perimeter() -> None:
    assert shrink_distance(BOX, 0.4) == pytest.approx(60 * 30 * 0.84 / 180)
    maps = naive_maps(one(), (100, 100), MapSettings())
    rows, columns = np.nonzero(maps.shrink)
    np.testing.assert_allclose((columns.min(), rows.min()), (28.4, 28.4), atol=1)
    np.testing.assert_allclose((columns.max(), rows.max()), (71.6, 41.6), atol=1)
    assert maps.shrink_mask.all()


def test_thresholds_are_highest_on_the_border() -> None:
    maps = naive_maps(one(), (100, 100), MapSettings())
    assert maps.thresh[20, 50] == pytest.approx(0.7)
    assert maps.thresh[24, 50] == pytest.approx(0.3 + 0.4 * (1 - 4 / 8.4), abs=1e-5)
    assert maps.thresh[16, 50] == pytest.approx(maps.thresh[24, 50])
    assert maps.thresh[35, 50] == maps.thresh[5, 5] == pytest.approx(0.3)
    assert maps.thresh_mask[14, 50] == 1
    assert maps.thresh_mask[5, 5] == 0


@pytest.mark.parametrize(
    ("polygons", "settings"),
    [
        (one(ignored=True), MapSettings()),
        (one(), MapSettings(min_text_size=31)),
        (one([(20, 20), (80, 20), (80, 20.01)]), MapSettings(min_text_size=0)),
    ],
)
def test_what_is_not_learned_is_masked_out(polygons: PolygonArray, settings: MapSettings) -> None:
    maps = naive_maps(polygons, (100, 100), settings)
    assert not maps.shrink.any()
    assert not maps.thresh_mask.any()
    assert maps.shrink_mask[20, 50] == 0
    assert maps.shrink_mask[60, 50] == 1


def test_distances_follow_the_law_of_the_paper() -> None:
    x, y = np.asarray([[5.0, 12.0, 0.0, 5.0]]), np.asarray([[3.0, 0.0, 4.0, 9.0]])
    start, end = np.asarray([0.0, 0.0]), np.asarray([10.0, 0.0])
    away = edge_distance(x, y, start, end)[0]
    assert away[0] == pytest.approx(3)  # inside the circle over the edge: the distance to its line
    assert away[1] == pytest.approx(2)
    assert away[2] == pytest.approx(4)
    assert away[3] == pytest.approx(np.hypot(5, 9))  # outside the circle: the distance to the nearer end


@pytest.mark.parametrize("index", range(4))
@pytest.mark.parametrize("ratio", [0.4, 0.6])
def test_the_exact_kernel_gives_the_same_maps(index: int, ratio: float) -> None:
    _, polygons = draw(5, index, 256)
    moved = PolygonArray(polygons.points + np.float32(-8), polygons.offsets, polygons.ignored)  # some leave the image
    settings = MapSettings(shrink_ratio=ratio, min_text_size=4)
    plain, exact = naive_maps(moved, (256, 256), settings), make_maps(moved, (256, 256), settings)
    np.testing.assert_array_equal(plain.shrink, exact.shrink)
    np.testing.assert_array_equal(plain.shrink_mask, exact.shrink_mask)
    np.testing.assert_array_equal(plain.thresh_mask, exact.thresh_mask)
    np.testing.assert_allclose(plain.thresh, exact.thresh, atol=1e-6)
    assert plain.shrink.any()
