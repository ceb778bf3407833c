"""Held-out pictures and their targets, kept from the first pass on."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from hasten.recipes.findings import Findings
from hasten.recipes.ocr import kept as kept_module
from hasten.recipes.ocr.data import OcrData, prepared
from hasten.recipes.ocr.kept import HeldData, KeptData
from hasten.recipes.ocr.maps import MapSettings
from hasten.recipes.ocr.plain import plain_maps
from hasten.recipes.ocr.regions import Item, read_regions
from hasten.recipes.ocr.synth import write

SIZE = (128, 160)
SETTINGS = MapSettings(min_text_size=3)


@pytest.fixture
def pages(tmp_path: Path) -> OcrData:
    write(tmp_path, 3, seed=1, size=192)
    return OcrData(read_regions(tmp_path / "images", tmp_path / "labels", Findings()))


@pytest.mark.parametrize("near_bytes", [0, 150_000, 2**30])
def test_what_is_kept_is_what_is_made_anew(
    pages: OcrData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, near_bytes: int
) -> None:
    monkeypatch.setattr(kept_module, "NEAR_BYTES", near_bytes)
    kept = KeptData(pages, SIZE, SETTINGS, tmp_path / "kept")
    for _ in range(2):
        for index in range(len(kept)):
            picture, points, offsets, ignored, targets = kept[index]
            fresh = HeldData(pages, SIZE)[index]
            for one, other in zip((picture, points, offsets, ignored), fresh[:4], strict=True):
                np.testing.assert_array_equal(one, other)
            assert targets is not None
            from hasten.recipes.ocr.data import polygons_of

            plain = plain_maps(polygons_of(points, offsets, ignored), SIZE, SETTINGS)
            np.testing.assert_array_equal(targets[0], plain.shrink)
            np.testing.assert_array_equal(targets[1], plain.shrink_mask)
            assert targets[2] > 0
    assert (len(kept.pictures), len(kept.targets)) == (3, 3)
    in_memory = {0: 0, 150_000: 1, 2**30: 3}[near_bytes]
    assert (kept.targets.stats.hits, kept.targets.stats.misses) == (3 - in_memory, 3)


def test_another_process_finds_what_was_kept(pages: OcrData, tmp_path: Path) -> None:
    first = KeptData(pages, SIZE, SETTINGS, tmp_path / "kept")
    wanted = first[0][0]
    again = KeptData(pages, SIZE, SETTINGS, tmp_path / "kept")
    np.testing.assert_array_equal(again[0][0], wanted)
    assert again.targets.stats.hits == 1


def test_a_changed_file_setting_or_size_finds_nothing(pages: OcrData, tmp_path: Path) -> None:
    place = tmp_path / "kept"
    KeptData(pages, SIZE, SETTINGS, place)[0]
    other = KeptData(pages, SIZE, MapSettings(min_text_size=3, shrink_ratio=0.6), place)
    other[0]
    assert other.targets.stats.misses == 1
    wider = KeptData(pages, (160, 160), SETTINGS, place)
    assert wider[0][0].shape == (160, 160, 3)
    item: Item = pages.items[0]
    os.utime(item.path, ns=(1, 1))
    KeptData(pages, SIZE, SETTINGS, place)[0]
    assert len(wider.pictures) == 3
    assert len(wider.targets) == 3  # the same polygons in the same size need no new targets


def test_without_a_folder_they_lie_where_the_cache_variable_says(
    pages: OcrData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HASTEN_CACHE_DIR", str(tmp_path / "all"))
    kept = KeptData(pages, SIZE, SETTINGS)
    np.testing.assert_array_equal(kept[1][0], prepared(pages[1], SIZE)[0])
    assert (tmp_path / "all" / "ocr" / "pictures").is_dir()


def test_what_is_in_memory_is_not_sent_to_a_worker_process(pages: OcrData, tmp_path: Path) -> None:
    kept = KeptData(pages, SIZE, SETTINGS, tmp_path / "kept")
    before = len(pickle.dumps(kept))
    first = kept[0]
    sent = pickle.dumps(kept)
    assert len(sent) < before + first[0].nbytes // 10
    np.testing.assert_array_equal(pickle.loads(sent)[0][0], first[0])
