"""Mean average precision against values computed by hand."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from hasten.recipes.detection.evaluate import mean_average_precision

Floats = npt.NDArray[np.float32]
NOTHING = np.zeros((0, 6), np.float32)
EMPTY = np.zeros((0, 5), np.float32)


def detections(*rows: tuple[float, ...]) -> Floats:
    """Return an array with rows of x1, y1, x2, y2, score, class."""
    return np.array(rows, np.float32).reshape(-1, 6)


def objects(*rows: tuple[float, ...]) -> Floats:
    """Return an array with rows of class, x1, y1, x2, y2."""
    return np.array(rows, np.float32).reshape(-1, 5)


ONE = objects((0, 10, 10, 30, 30))
HIT = (10, 10, 30, 30, 0.9, 0)


def test_all_found_and_nothing_else_is_one() -> None:
    found = mean_average_precision([(detections(HIT), ONE), (detections((5, 5, 9, 9, 0.5, 1)), objects((1, 5, 5, 9, 9)))], 2)
    assert found == pytest.approx({"map50": 1.0, "map": 1.0})


@pytest.mark.parametrize(
    "images",
    [
        [(NOTHING, ONE)],
        [(NOTHING, EMPTY)],
        [(detections(HIT), EMPTY)],
        [],
        [(detections((60, 60, 80, 80, 0.9, 0)), ONE)],
        [(detections((10, 10, 30, 30, 0.9, 1)), ONE)],
    ],
)
def test_nothing_found_is_zero_and_no_nan(images: list[tuple[Floats, Floats]]) -> None:
    assert mean_average_precision(images, 2) == {"map50": 0.0, "map": 0.0}


def test_half_of_the_objects_found_is_the_recalls_that_were_reached() -> None:
    images = [(detections(HIT), ONE), (NOTHING, ONE)]
    assert mean_average_precision(images, 1)["map50"] == pytest.approx(51 / 101)  # recall 0, 0.01 ... 0.5 of 0 ... 1


def test_a_wrong_box_above_the_right_one_halves_the_precision() -> None:
    images = [(detections((60, 60, 80, 80, 0.95, 0), HIT), ONE)]
    assert mean_average_precision(images, 1)["map50"] == pytest.approx(0.5)


def test_a_wrong_box_below_the_right_one_costs_nothing() -> None:
    images = [(detections((60, 60, 80, 80, 0.5, 0), HIT), ONE)]
    assert mean_average_precision(images, 1)["map50"] == pytest.approx(1.0)


def test_a_wrong_box_on_a_image_without_objects_counts() -> None:
    images = [(detections(HIT), ONE), (detections((1, 1, 9, 9, 0.95, 0)), EMPTY)]
    assert mean_average_precision(images, 1)["map50"] == pytest.approx(0.5)


def test_the_same_object_counts_once() -> None:
    twice = detections((10, 10, 30, 30, 0.9, 0), (10, 10, 30, 30, 0.95, 0))
    found = mean_average_precision([(twice, objects((0, 10, 10, 30, 30), (0, 50, 50, 70, 70)))], 1)
    assert found["map50"] == pytest.approx(51 / 101)


def test_a_box_counts_at_the_overlaps_it_reaches() -> None:
    # 20 x 14.4 of 20 x 20: an overlap of 0.72 counts at 0.50, 0.55, 0.60, 0.65 and 0.70, five of the ten.
    found = mean_average_precision([(detections((10, 10, 30, 24.4, 0.9, 0)), ONE)], 1)
    assert found == pytest.approx({"map50": 1.0, "map": 0.5})


def test_a_class_that_no_image_holds_does_not_count() -> None:
    assert mean_average_precision([(detections(HIT), ONE)], 7)["map50"] == pytest.approx(1.0)


def test_classes_count_equally_however_many_objects_they_have() -> None:
    many = objects(*[(0, x, 10, x + 8, 18) for x in range(0, 90, 10)], (1, 50, 50, 70, 70))
    found = detections(*[(x, 10, x + 8, 18, 0.9, 0) for x in range(0, 90, 10)])
    assert mean_average_precision([(found, many)], 2)["map50"] == pytest.approx(0.5)


def test_the_first_object_and_the_first_image_count_as_any() -> None:
    images = [(detections(HIT), ONE) for _ in range(3)]
    assert mean_average_precision(images, 1) == pytest.approx({"map50": 1.0, "map": 1.0})
