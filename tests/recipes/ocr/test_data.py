"""Images fitted into one size with their polygons, and polygons clipped at the edges of a crop."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hasten.core.errors import DataError
from hasten.core.records import decode, encode
from hasten.recipes.ocr.augment import in_frame
from hasten.recipes.ocr.data import HeldOutData, OcrData, RawSample, Sample, polygons_of, prepared, read_items, split
from hasten.recipes.ocr.maps import MapSettings, PolygonArray
from hasten.recipes.ocr.naive import DecodedData, naive_maps
from hasten.recipes.ocr.regions import Item
from hasten.recipes.pictures import fit


def marked(folder: Path, name: str = "a.png", *, turned: bool = False) -> Item:
    """Return a white image of 200 x 100 pixels with a black box inside its only polygon."""
    pixels = np.full((100, 200, 3), 255, dtype=np.uint8)
    pixels[40:60, 50:150] = 0
    image = Image.fromarray(np.rot90(pixels) if turned else pixels)
    exif = Image.Exif()
    if turned:
        exif[0x0112] = 6  # rotate it clockwise to make it upright
    image.save(folder / name, exif=exif)
    corners = np.asarray([(50, 40), (150, 40), (150, 60), (50, 60)], dtype=np.float32)
    return Item(folder / name, (100, 200), PolygonArray.from_list([corners], [False]))


@pytest.mark.parametrize("size", [(64, 64), (128, 64), (64, 160), (320, 320)])
@pytest.mark.parametrize("turned", [False, True])
def test_polygons_stay_on_what_they_mark(tmp_path: Path, size: tuple[int, int], turned: bool) -> None:
    data = OcrData((marked(tmp_path, turned=turned),))
    decoded, points, offsets, ignored = prepared(data[0], size)
    assert decoded.shape == (*size, 3)
    assert decoded.dtype == np.uint8
    assert offsets.tolist() == [0, 4]
    assert ignored.tolist() == [False]
    rows, columns = np.nonzero(decoded[:, :, 0] < 57)
    np.testing.assert_allclose(points.min(axis=0), (columns.min(), rows.min()), atol=1.5)
    np.testing.assert_allclose(points.max(axis=0), (columns.max() + 1, rows.max() + 1), atol=1.5)


def test_a_image_of_the_right_size_is_not_touched() -> None:
    decoded = np.random.default_rng(0).integers(0, 255, (64, 96, 3), dtype=np.uint8)
    fitted, scale, place = fit(decoded, (64, 96))
    np.testing.assert_array_equal(fitted, decoded)
    assert (scale, place) == ((1.0, 1.0), (0, 0))


def test_samples_can_be_kept_by_the_general_caches(tmp_path: Path) -> None:
    sample = prepared(OcrData((marked(tmp_path),))[0], (64, 64))
    again = decode(bytearray(encode(sample)))
    arrays: tuple[np.ndarray[tuple[int, ...], np.dtype[np.generic]], ...] = sample
    for one, other in zip(arrays, again, strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype


def test_a_image_found_corrupt_late_is_left_out_and_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    item = marked(tmp_path)
    item.path.write_bytes(b"overwritten")
    with caplog.at_level(logging.WARNING):
        decoded, points, offsets, ignored = DecodedData(OcrData((item,)), (64, 96))[0]
    assert "a.png" in caplog.text
    assert decoded.shape == (64, 96, 3)
    assert ignored.tolist() == [True]
    assert points[offsets[0] : offsets[1]].max(axis=0).tolist() == [96, 64]


def test_held_out_images_are_the_same_in_any_order(tmp_path: Path) -> None:
    items = tuple(marked(tmp_path, f"{number}.png") for number in range(10))
    learned, held = split(items, 0.3)
    assert len(held) == 3
    assert {item.path for item in learned} | {item.path for item in held} == {item.path for item in items}
    again = split(items[::-1], 0.3)[1]
    assert {item.path for item in held} == {item.path for item in again}
    with pytest.raises(DataError, match="both sets need at least one"):
        split(items, 0.01)


def test_too_many_faults_are_refused_and_few_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(4):
        marked(tmp_path, f"{number}.png")
        (tmp_path / f"{number}.txt").write_text("50,40,150,40,150,60,50,60,text\n")
    for name in ("2.png", "3.png"):
        (tmp_path / name).write_bytes(b"broken")
    with pytest.raises(DataError, match=r"2\.png.*and 1 more like this"):
        read_items(tmp_path, tmp_path)
    with caplog.at_level(logging.WARNING):
        assert len(read_items(tmp_path, tmp_path, max_bad_frac=0.5)) == 2
    assert "2.png" in caplog.text


def test_images_without_any_text_are_nothing_to_learn(tmp_path: Path) -> None:
    marked(tmp_path)
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(DataError, match="nothing to train on"):
        read_items(tmp_path, tmp_path)


def test_polygons_are_cut_off_at_the_edges() -> None:
    polygons = PolygonArray.from_list(
        [
            np.asarray(corners, dtype=np.float32)
            for corners in (
                [(10, 10), (30, 10), (30, 20), (10, 20)],  # inside
                [(-10, 40), (30, 40), (30, 50), (-10, 50)],  # three quarters inside
                [(80, 70), (180, 70), (180, 80), (80, 80)],  # a fifth inside
                [(120, 10), (140, 10), (140, 20), (120, 20)],  # outside
                [(90, 90), (110, 90), (110, 110), (90, 110)],  # a quarter, over a corner
            )
        ],
        [False] * 5,
    )
    points, offsets, ignored = in_frame(polygons.points, polygons.offsets, polygons.ignored, (100, 100))
    cut = PolygonArray(points, offsets, ignored)
    assert ignored.tolist() == [False, False, True, True]
    assert cut.polygon(1)[:, 0].min() == 0
    assert cut.polygon(2).max(axis=0).tolist() == [100, 80]
    assert cut.polygon(3).max(axis=0).tolist() == [100, 100]
    assert cut.polygon(3).min(axis=0).tolist() == [90, 90]


def test_a_image_without_text_stays_so() -> None:
    empty = PolygonArray.from_list([], [])
    points, offsets, ignored = in_frame(empty.points, empty.offsets, empty.ignored, (10, 10))
    assert len(PolygonArray(points, offsets, ignored)) == 0
    gone = PolygonArray.from_list([[(20, 20), (30, 20), (30, 30)]], [False])
    assert len(PolygonArray(*in_frame(gone.points, gone.offsets, gone.ignored, (10, 10)))) == 0


@pytest.mark.parametrize(("max_bytes", "num_cached"), [(0, 0), (30_000, 1), (2**20, 3)])
def test_held_out_images_are_decoded_once_and_their_targets_are_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_bytes: int, num_cached: int
) -> None:
    data, size = OcrData(tuple(marked(tmp_path, f"{name}.png") for name in "abc")), (64, 64)
    settings = MapSettings(min_text_size=3)
    held = HeldOutData(data, size, settings, max_bytes)
    decoded: list[str] = []

    def counting(sample: RawSample, size: tuple[int, int]) -> Sample:
        decoded.append(sample[0])
        return prepared(sample, size)

    monkeypatch.setattr("hasten.recipes.ocr.data.prepared", counting)
    for _ in range(2):
        for index in range(len(held)):
            canonical, points, offsets, ignored, targets = held[index]
            for one, other in zip((canonical, points, offsets, ignored), prepared(data[index], size), strict=True):
                np.testing.assert_array_equal(one, other)
            wanted = naive_maps(polygons_of(points, offsets, ignored), size, settings)
            assert targets is not None
            np.testing.assert_array_equal(targets[0], wanted.shrink)
            np.testing.assert_array_equal(targets[1], wanted.shrink_mask)
            assert targets[0].any()
            assert targets[2] > 0
    assert len(decoded) == 6 - num_cached


def test_cached_held_out_images_are_not_sent_to_a_worker_process(tmp_path: Path) -> None:
    held = HeldOutData(OcrData((marked(tmp_path),)), (64, 64), MapSettings(), 2**20)
    before = len(pickle.dumps(held))
    decoded = held[0][0]
    sent = pickle.dumps(held)
    assert len(sent) < before + decoded.nbytes // 10
    np.testing.assert_array_equal(pickle.loads(sent)[0][0], decoded)
