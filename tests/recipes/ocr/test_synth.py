"""Generated pages: reproducible from the seed, labelled where their text is, and readable like other data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hasten.core.errors import DataError
from hasten.recipes.findings import Findings
from hasten.recipes.ocr.regions import read_regions
from hasten.recipes.ocr.synth import draw, write


def test_a_page_is_a_function_of_seed_index_and_size() -> None:
    image, regions = draw(3, 4, (192, 256))
    again, same = draw(3, 4, (192, 256))
    other, _ = draw(3, 5, (192, 256))
    assert image.shape == (192, 256, 3)
    assert image.dtype == np.uint8
    np.testing.assert_array_equal(image, again)
    np.testing.assert_array_equal(regions.points, same.points)
    assert not np.array_equal(image, other)


def test_text_is_where_the_labels_say() -> None:
    """Ink causes contrast: far more inside the labels than outside."""
    import cv2

    inside, outside = [], []
    for index in range(6):
        image, regions = draw(0, index, 256)
        grey = image.mean(axis=2)
        rough = np.abs(np.diff(grey, axis=1))[:, :255]
        mask = np.zeros((256, 256), dtype=np.uint8)
        for number in range(len(regions)):
            cv2.fillPoly(mask, [regions.polygon(number).astype(np.int32)], 1)
        inside.append(float(rough[mask[:, :255] == 1].mean()))
        outside.append(float(rough[mask[:, :255] == 0].mean()))
    assert np.mean(inside) > 3 * np.mean(outside)


def test_lines_are_straight_bent_and_illegible() -> None:
    pages = [draw(0, index, 320)[1] for index in range(30)]
    counts = np.concatenate([np.diff(page.offsets) for page in pages])
    assert set(counts.tolist()) == {4, 12}
    assert 0.02 < np.concatenate([page.ignored for page in pages]).mean() < 0.15
    assert 4 < np.mean([len(page) for page in pages]) < 16


def test_pages_that_were_written_are_read_as_they_were_drawn(tmp_path: Path) -> None:
    told: list[int] = []
    write(tmp_path, 5, seed=2, size=256, told=lambda: told.append(1))
    assert len(told) == 5
    findings = Findings()
    items = read_regions(tmp_path / "images", tmp_path / "labels", findings)
    assert not len(findings), findings.words()
    assert len(items) == 5
    for index, item in enumerate(items):
        _, regions = draw(2, index, 256)
        assert item.size == (256, 256)
        assert item.regions.ignored.tolist() == regions.ignored.tolist()
        np.testing.assert_allclose(item.regions.points, regions.points, atol=0.06)


def test_a_page_needs_room() -> None:
    with pytest.raises(DataError, match="64 pixels"):
        draw(0, 0, 32)
