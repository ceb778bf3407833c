"""Generated banknotes: reproducible from the seed, boxes around the visible parts, and files that can be read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from hasten.core.errors import DataError
from hasten.recipes.detection.labels import read_labels
from hasten.recipes.detection.synth import CLASSES, DENOMINATIONS, draw, write
from hasten.recipes.findings import Findings
from hasten.recipes.pictures import read_picture


def test_a_image_is_a_function_of_seed_index_and_size() -> None:
    first, boxes, classes = draw(3, 5, 160)
    again, same_boxes, same_classes = draw(3, 5, 160)
    assert (first == again).all()
    assert (boxes == same_boxes).all()
    assert (classes == same_classes).all()
    for other in ((4, 5, 160), (3, 6, 160)):
        assert (draw(*other)[0] != first).any()


@pytest.mark.parametrize("size", [64, 160, 320])
def test_boxes_lie_within_the_image_and_name_a_class(size: int) -> None:
    counts = []
    for index in range(12):
        image, boxes, classes = draw(0, index, size)
        assert image.shape == (size, size, 3)
        assert image.dtype == np.uint8
        assert boxes.dtype == np.float32
        assert classes.dtype == np.int64
        assert len(boxes) == len(classes)
        assert (boxes >= 0).all()
        assert (boxes <= size).all()
        assert (boxes[:, 2:] > boxes[:, :2]).all()
        assert set(classes.tolist()) <= set(range(len(CLASSES)))
        counts.append(len(boxes))
    assert max(counts) > 1


def test_every_denomination_is_drawn_and_can_be_told_by_its_colour() -> None:
    seen: dict[int, list[float]] = {}
    for index in range(60):
        image, boxes, classes = draw(1, index, 96)
        for (left, top, right, bottom), kind in zip(boxes.astype(int), classes.tolist(), strict=True):
            colour = image[top:bottom, left:right].mean(axis=(0, 1))
            seen.setdefault(kind, []).append(float(colour[0] - colour[2]))
    assert seen.keys() == set(range(len(CLASSES)))
    blue, orange = CLASSES.index("20"), CLASSES.index("50")
    assert np.mean(seen[orange]) > np.mean(seen[blue]) + 5


def test_classes_are_the_denominations() -> None:
    assert tuple(str(kind.number) for kind in DENOMINATIONS) == CLASSES
    assert len(set(CLASSES)) == 6


@pytest.mark.parametrize("labels", ["yolo", "coco"])
def test_what_is_written_is_read_back(tmp_path: Path, labels: Literal["yolo", "coco"]) -> None:
    told: list[int] = []
    write(tmp_path, 5, seed=2, labels=labels, size=128, told=lambda: told.append(1))
    assert len(told) == 5
    findings = Findings()
    labelled = read_labels(tmp_path / "images", tmp_path / "labels", findings)
    assert len(findings) == 0
    assert labelled.classes == CLASSES
    for index, item in enumerate(labelled.items):
        image, boxes, classes = draw(2, index, 128)
        assert item.boxes == pytest.approx(boxes, abs=0.01)
        assert (item.classes == classes).all()
        # JPEG stores colours at half the resolution, so blocks of 16 pixels are compared.
        squares = [pixels.reshape(8, 16, 8, 16, 3).mean(axis=(1, 3)) for pixels in (read_picture(item.path), image)]
        assert np.abs(squares[0] - squares[1]).max() < 8


def test_images_that_are_there_are_not_mixed_with_others(tmp_path: Path) -> None:
    write(tmp_path, 1, size=64)
    with pytest.raises(DataError, match="not empty"):
        write(tmp_path, 1, size=64)


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least 64"):
        draw(0, 0, 32)
    with pytest.raises(ValueError, match="count"):
        write(tmp_path, 0)
    other: Any = "voc"
    with pytest.raises(ValueError, match="labels"):
        write(tmp_path, 1, labels=other)
