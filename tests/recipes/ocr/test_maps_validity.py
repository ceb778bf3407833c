"""Annotations become drawable polygons, or nothing."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

shapely = pytest.importorskip("shapely")

from hasten.recipes.ocr.maps import PolygonArray  # noqa: E402  after what decides whether it can be imported
from hasten.recipes.ocr.maps.validity import repair  # noqa: E402

SQUARE = [[10, 10], [50, 10], [50, 30], [10, 30]]


def area(polygon: npt.NDArray[np.float32]) -> float:
    """Return the signed area, positive if the corners go clockwise as displayed."""
    x, y = polygon.astype(np.float64).T
    return float(np.sum(x * np.roll(y, -1) - np.roll(x, -1) * y) / 2)


@pytest.mark.parametrize(
    "given_as", [SQUARE, [SQUARE[0], *SQUARE[:0:-1]], [*SQUARE, SQUARE[0]], np.repeat(SQUARE, 2, axis=0)]
)
def test_a_good_polygon_changes_only_its_direction_and_repeated_corners(given_as: npt.ArrayLike) -> None:
    (repaired,) = repair(given_as)
    assert repaired.dtype == np.float32
    assert repaired.tolist() == SQUARE


def test_a_bow_tie_becomes_two_triangles() -> None:
    parts = repair([[0, 0], [40, 40], [40, 0], [0, 40]])
    assert sorted(len(part) for part in parts) == [3, 3]
    assert [area(part) for part in parts] == [400, 400]


def test_a_line_with_twelve_corners_that_crosses_itself_is_repaired() -> None:
    along = np.linspace(0, 100, 6)
    upper, lower = np.stack([along, 20 + along / 10], 1), np.stack([along[::-1], 40 - along / 10], 1)
    crossed = np.concatenate([upper, lower])
    crossed[[2, 9]] = crossed[[9, 2]]
    assert not shapely.Polygon(crossed).is_valid
    parts = repair(crossed)
    assert all(shapely.Polygon(part).is_valid and area(part) > 0 for part in parts)
    assert len(PolygonArray.from_list(parts)) == len(parts) >= 1


@pytest.mark.parametrize(
    "polygon",
    [
        [],
        [[1, 1], [5, 5]],
        [[1, 1], [1, 1], [9, 9], [9, 9]],
        [[0, 0], [10, 10], [20, 20]],
        [[0, 0], [np.nan, 10], [20, 0]],
        [[0, 0], [np.inf, 10], [20, 0]],
        [[0, 0], [1e12, 10], [20, 0]],
        [[0, 0], [10, 0], [0, 0], [10, 0]],
    ],
    ids=["empty", "two corners", "two distinct", "a line", "nan", "infinite", "too large", "there and back"],
)
def test_what_has_no_area_is_nothing(polygon: npt.ArrayLike) -> None:
    assert repair(polygon) == []


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_what_comes_out_can_always_be_drawn(seed: int) -> None:
    draw = np.random.default_rng(seed)
    corners = draw.integers(0, 12, (draw.integers(0, 13), 2)).astype(np.float64) * draw.choice([1.0, 0.3, 7.0])
    before = corners.copy()
    parts = repair(corners)
    assert np.array_equal(corners, before)
    assert len(PolygonArray.from_list(parts)) == len(parts)
    assert all(area(part) > 0 for part in parts)
    assert all(shapely.Polygon(part).buffer(0).area == pytest.approx(area(part), rel=0.01, abs=0.01) for part in parts)
