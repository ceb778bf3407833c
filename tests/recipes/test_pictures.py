"""Images of every common kind give the same kind of array, and errors name unusable files."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from hasten.core.errors import DataError
from hasten.recipes.pictures import PADDING, check_picture, letterbox, list_pictures, picture_size, read_picture, read_text


def pixels(height: int = 24, width: int = 40, channels: int = 3, seed: int = 0) -> Any:
    """Return pixels smooth enough to survive JPEG almost unchanged."""
    coarse = np.random.default_rng(seed).integers(0, 256, (3, 5, channels), dtype=np.uint8)
    layers = [np.asarray(Image.fromarray(coarse[..., at]).resize((width, height))) for at in range(channels)]
    return np.stack(layers, axis=-1)


def saved(path: Path, image: Image.Image, **settings: Any) -> Path:
    image.save(path, **settings)
    return path


def test_a_jpeg_gives_the_pixels_that_pillow_gives(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.jpg", Image.fromarray(pixels()), quality=95)
    expected = np.asarray(Image.open(path).convert("RGB"))
    read = read_picture(path)
    assert read.dtype == np.uint8
    assert np.abs(read.astype(int) - expected).max() <= 1
    assert picture_size(path) == check_picture(path) == (24, 40)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["jpg", "png", "tif"])
def test_the_orientation_of_exif_is_applied(tmp_path: Path, orientation: int, suffix: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    settings = {"quality": 100, "subsampling": 0} if suffix == "jpg" else {}
    path = saved(tmp_path / f"a.{suffix}", Image.fromarray(pixels()), exif=exif, **settings)
    with Image.open(path) as opened:
        expected = np.asarray(ImageOps.exif_transpose(opened))
    read = read_picture(path)
    assert read.shape == expected.shape
    assert np.abs(read.astype(int) - expected).max() <= 1
    assert picture_size(path) == read.shape[:2]
    assert (read.shape[:2] == (40, 24)) == (orientation >= 5)


def test_damaged_exif_leaves_a_sound_image_unchanged(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.jpg", Image.fromarray(pixels()), exif=b"Exif\0\0nonsense")
    assert read_picture(path).shape == (24, 40, 3)
    assert picture_size(path) == (24, 40)


def test_sixteen_bits_are_divided_by_257(tmp_path: Path) -> None:
    deep = np.array([[0, 257, 65535], [128, 129, 32896]], np.uint16)
    path = saved(tmp_path / "a.png", Image.fromarray(deep))
    np.save(tmp_path / "b.npy", deep)
    for read in (read_picture(path), read_picture(tmp_path / "b.npy")):
        assert read[..., 0].tolist() == [[0, 1, 255], [0, 1, 128]]
        assert (read == read[..., :1]).all()


def test_what_is_transparent_is_laid_on_white(tmp_path: Path) -> None:
    colours = pixels(channels=4)
    colours[..., 3] = 255
    colours[:5, :, 3] = 0
    colours[5, :, 3] = 51  # a fifth
    path = saved(tmp_path / "a.png", Image.fromarray(colours))
    np.save(tmp_path / "b.npy", colours)
    for read in (read_picture(path), read_picture(tmp_path / "b.npy")):
        assert (read[:5] == 255).all()
        assert (read[6:] == colours[6:, :, :3]).all()
        assert np.abs(read[5] - (0.2 * colours[5, :, :3] + 0.8 * 255)).max() <= 0.5 + 1e-6


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "CMYK", "RGB", "RGBA"])
def test_every_mode_comes_out_with_three_colours(tmp_path: Path, mode: str) -> None:
    image = Image.fromarray(pixels()).convert(mode)
    path = saved(tmp_path / ("a.jpg" if mode == "CMYK" else "a.png"), image)
    assert read_picture(path).shape == (24, 40, 3)
    assert check_picture(path) == (24, 40)


def test_a_palette_with_a_transparent_colour_is_laid_on_white(tmp_path: Path) -> None:
    image = Image.new("P", (4, 4), 0)
    image.putpalette([10, 20, 30, 200, 100, 0])
    image.putpixel((1, 2), 1)
    path = saved(tmp_path / "a.png", image, transparency=0)
    read = read_picture(path)
    assert read[2, 1].tolist() == [200, 100, 0]
    assert read[0, 0].tolist() == [255, 255, 255]


@pytest.mark.parametrize("shape", [(24, 40), (24, 40, 1), (24, 40, 3), (24, 40, 4)])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32", "float64"])
def test_arrays_of_every_shape_and_kind_give_the_same(tmp_path: Path, shape: tuple[int, ...], dtype: str) -> None:
    array = np.random.default_rng(0).random(shape)
    if dtype.startswith("u"):
        array = array * np.iinfo(dtype).max
    np.save(tmp_path / "a.npy", array.astype(dtype))
    read = read_picture(tmp_path / "a.npy")
    assert read.shape == (24, 40, 3)
    assert read.dtype == np.uint8
    assert type(read) is np.ndarray  # a memory-mapped array cannot be cached
    assert picture_size(tmp_path / "a.npy") == (24, 40)
    read[:] = 0  # fails unless it owns its memory


def test_floats_go_from_0_to_1(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([[0.0, 0.5, 1.0]], np.float32))
    assert read_picture(tmp_path / "a.npy")[0, :, 0].tolist() == [0, 128, 255]


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.full((4, 4), 200.0), "0 to 1"),
        (np.array([[0.5, np.nan]]), "0 to 1"),
        (np.zeros((3, 8, 8), np.uint8), r"transpose\(1, 2, 0\)"),
        (np.zeros((0, 8), np.uint8), "not an image"),
        (np.zeros((8, 8, 2), np.uint8), "not an image"),
        (np.zeros((8, 8), np.int64), "int64"),
    ],
)
def test_arrays_that_are_no_images_are_refused_by_name(tmp_path: Path, array: Any, words: str) -> None:
    np.save(tmp_path / "odd.npy", array)
    for look in (read_picture, check_picture):
        with pytest.raises(DataError, match=rf"odd\.npy.*{words}"):
            look(tmp_path / "odd.npy")


def test_an_array_with_a_damaged_header_is_named(tmp_path: Path) -> None:
    np.save(tmp_path / "odd.npy", np.zeros((8, 8), np.uint8))
    whole = (tmp_path / "odd.npy").read_bytes()
    for broken in (whole.replace(b"}", b" "), whole.replace(b"descr", b"desc\xff"), whole.replace(b"8, 8", b"8, -8")):
        assert broken != whole
        (tmp_path / "odd.npy").write_bytes(broken)
        for look in (read_picture, picture_size):
            with pytest.raises(DataError, match=r"odd\.npy"):
                look(tmp_path / "odd.npy")


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    np.save(tmp_path / "odd.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match=r"odd\.npy"):
        read_picture(tmp_path / "odd.npy")


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.npy"])
def test_files_that_are_missing_empty_or_no_images_are_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    for look in (read_picture, picture_size, check_picture):
        with pytest.raises(DataError, match=rf"{name}: it cannot be read"):
            look(path)
    path.write_bytes(b"")
    for look in (read_picture, picture_size, check_picture):
        with pytest.raises(DataError, match=rf"{name}: the file is empty"):
            look(path)
    path.write_bytes(b"this is not an image" * 9)
    for look in (read_picture, picture_size, check_picture):
        with pytest.raises(DataError, match=rf"{name}: the image cannot be decoded"):
            look(path)


@pytest.mark.parametrize("suffix", ["jpg", "png", "bmp", "npy"])
@pytest.mark.parametrize("share", [0.3, 0.9])
def test_a_file_that_was_cut_is_found_without_waiting_for_its_turn(tmp_path: Path, suffix: str, share: float) -> None:
    path, whole = tmp_path / f"a.{suffix}", io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8)
    if suffix == "npy":
        np.save(whole, noise)
    else:
        Image.fromarray(noise).save(whole, {"jpg": "jpeg"}.get(suffix, suffix))
    path.write_bytes(whole.getvalue())
    assert check_picture(path) == (60, 80)
    path.write_bytes(whole.getvalue()[: int(len(whole.getvalue()) * share)])
    with pytest.raises(DataError, match=rf"a\.{suffix}"):
        check_picture(path)
    with pytest.raises(DataError, match=rf"a\.{suffix}"):
        read_picture(path)


def test_a_jpeg_with_zeros_behind_its_end_is_sound(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.jpg", Image.fromarray(pixels()))
    path.write_bytes(path.read_bytes() + b"\0" * 20)
    assert check_picture(path) == (24, 40)
    path.write_bytes(path.read_bytes() + b"data appended by a phone")
    assert check_picture(path) == (24, 40)


def test_images_are_listed_by_name_and_other_files_are_not(tmp_path: Path) -> None:
    for name in ("b.PNG", "a.jpg", "c.npy", "notes.txt", ".hidden.jpg"):
        (tmp_path / name).touch()
    (tmp_path / "folder.jpg").mkdir()
    assert [path.name for path in list_pictures(tmp_path)] == ["a.jpg", "b.PNG", "c.npy"]


def test_two_images_of_one_name_are_refused(tmp_path: Path) -> None:
    for name in ("a.jpg", "a.png", "b.jpg"):
        (tmp_path / name).touch()
    with pytest.raises(DataError, match=r"a\.jpg and a\.png"):
        list_pictures(tmp_path)


def test_a_folder_without_images_says_where_they_may_be(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    with pytest.raises(DataError, match=r"has no images.*subfolders \(train\)"):
        list_pictures(tmp_path)
    with pytest.raises(DataError, match="not a folder"):
        list_pictures(tmp_path / "missing")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_text_is_read_in_every_encoding_that_says_what_it_is(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "a.txt").write_text("größe\n日本\n", encoding=encoding)
    assert read_text(tmp_path / "a.txt") == "größe\n日本\n"


def test_text_in_another_encoding_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("eins\nzwei\ngrün\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"a\.txt, line 3: byte 0xfc is not UTF-8"):
        read_text(tmp_path / "a.txt")
    (tmp_path / "a.txt").write_bytes("eins\n".encode("utf-16-le"))
    with pytest.raises(DataError, match=r"a\.txt, line 1: it contains a zero byte"):
        read_text(tmp_path / "a.txt")
    with pytest.raises(DataError, match=r"missing\.txt"):
        read_text(tmp_path / "missing.txt")


@pytest.mark.parametrize(("height", "width"), [(30, 60), (60, 30), (64, 64), (200, 10), (1, 500)])
def test_letterbox_keeps_the_proportions_and_says_where_points_come_to_lie(height: int, width: int) -> None:
    source = np.full((height, width, 3), 7, np.uint8)
    square, scale, (left, top) = letterbox(source, 64)
    assert square.shape == (64, 64, 3)
    inside = (square == 7).all(axis=2)
    rows, columns = np.flatnonzero(inside.any(axis=1)), np.flatnonzero(inside.any(axis=0))
    assert (left, top) == (columns[0], rows[0])
    assert abs(columns[-1] + 1 - (left + width * scale)) <= 0.5 or width * scale < 1
    assert abs(rows[-1] + 1 - (top + height * scale)) <= 0.5 or height * scale < 1
    assert (square[~inside] == PADDING).all()
    assert (source == 7).all()
