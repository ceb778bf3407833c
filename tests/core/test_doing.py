"""What takes long is said while a command listens, and only then."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from hasten.core.doing import doing, doing_shown
from hasten.recipes.detection.job import DetectionJob
from tests.recipes.detection.shapes import write_pictures


def test_it_is_shown_within_the_block_only(caplog: pytest.LogCaptureFixture) -> None:
    said: list[str] = []
    doing("before")
    with doing_shown(said.append):
        doing("100 % of it")
    doing("after")
    assert said == ["100 % of it"]
    assert not caplog.records
    assert logging.getLogger("hasten.doing").level == logging.NOTSET


def test_recipes_say_that_they_read_labels(tmp_path: Path) -> None:
    folder = write_pictures(tmp_path, 4)

    class Mine(DetectionJob):
        images = str(folder)

    said: list[str] = []
    with doing_shown(said.append):
        Mine().train_data()
    assert said == [f"reading the images in {folder} and their labels"]
