"""The generated images of a job without folders: complete or absent, and generated once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hasten.core.errors import MachineError
from hasten.optimizations.parts.sample_caching import FOLDER_VARIABLE
from hasten.recipes.detection.job import DetectionJob
from hasten.recipes.detection.synth import drawn_pictures


def test_images_are_drawn_once_and_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    with ThreadPoolExecutor(2) as pool:  # like two processes that start at the same time
        folder, also = pool.map(lambda _: drawn_pictures(3), range(2))
    assert folder == also
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
    images = sorted((folder / "images").iterdir())
    assert len(images) == 3
    before = [path.stat().st_mtime_ns for path in images]
    assert drawn_pictures(3) == folder
    assert [path.stat().st_mtime_ns for path in images] == before
    assert drawn_pictures(3, seed=1) != folder


def test_a_job_without_folders_learns_drawn_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))

    class Few(DetectionJob):
        num_drawn = 10

    train, held = Few().labelled
    assert [len(train.items), len(held.items)] == [8, 2]
    assert len(Few().classes) > 1


def test_a_place_that_takes_no_files_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "file"))
    with pytest.raises(MachineError, match=FOLDER_VARIABLE):
        drawn_pictures(1)
