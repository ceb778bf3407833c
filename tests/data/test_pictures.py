"""Every kind of image becomes the same kind of array, whichever library decodes it, or is refused."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image, ImageOps

from hasten.data import pictures, resizing
from hasten.data.convert.contract import Choices
from hasten.data.convert.readers.images import Images
from hasten.data.pictures import check, decode, has_frames, header
from hasten.data.resizing import reduced, resize
from tests.data.reading import read

KINDS: dict[str, dict[str, Any]] = {
    "4:2:0": {"subsampling": "4:2:0"},
    "4:2:2": {"subsampling": "4:2:2"},
    "4:4:4": {"subsampling": "4:4:4"},
    "progressive": {"progressive": True},
    "restart markers": {"restart_marker_blocks": 2},
    "RGB": {"keep_rgb": True},
    "quality 20": {"quality": 20},
}


def image_of(height: int, width: int) -> Image.Image:
    coarse = np.random.default_rng(0).integers(0, 256, (height // 8 + 2, width // 8 + 2, 3), np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def saved(image: Image.Image, kind: str, **settings: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **settings)
    return file.getvalue()


def encoded(height: int, width: int, kind: str = "JPEG", **settings: Any) -> bytes:
    return saved(image_of(height, width), kind, **settings)


@pytest.fixture(params=["simplejpeg", "Pillow"])
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Select the package that decodes JPEG files."""
    if request.param == "simplejpeg":
        pytest.importorskip("simplejpeg")
    else:
        monkeypatch.setattr(pictures, "_simplejpeg", lambda: None)
    return str(request.param)


@pytest.mark.usefixtures("decoder")
@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("size", [(64, 96), (101, 77), (1, 1)])
def test_jpeg_pixels_are_those_of_pillow(kind: str, size: tuple[int, int]) -> None:
    data = encoded(*size, **KINDS[kind])
    want = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    np.testing.assert_array_equal(decode(data), want)
    (arrow,) = pa.array([data], pa.binary())
    out = np.zeros(want.shape, np.uint8)
    assert decode(memoryview(arrow.as_buffer()), out=out) is out
    np.testing.assert_array_equal(out, want)
    if size[0] % 2 == size[1] % 2 == 0:  # never decoded at a smaller size by default
        half = np.asarray(Image.open(io.BytesIO(data)).convert("RGB").reduce(2))
        np.testing.assert_array_equal(decode(data, (size[0] // 2, size[1] // 2)), half)


@pytest.mark.usefixtures("decoder")
@pytest.mark.parametrize("scale", [2, 4, 8])
@pytest.mark.parametrize("size", [(64, 96), (101, 77), (9, 8), (1, 1)])
def test_scaled_jpeg_pixels_are_those_of_pillow_drafts(scale: int, size: tuple[int, int]) -> None:
    data = encoded(*size)
    opened = Image.open(io.BytesIO(data))
    opened.draft("RGB", (max(size[1] // scale, 1), max(size[0] // scale, 1)))
    want = np.asarray(opened.convert("RGB"))
    small = decode(data, scale=scale)
    assert small.shape == (-(-size[0] // scale), -(-size[1] // scale), 3)
    np.testing.assert_array_equal(small, want)
    np.testing.assert_array_equal(decode(data, (5, 7), scale=scale), resize(want, (5, 7)))


@pytest.mark.parametrize("scale", [2, 4, 8])
def test_other_formats_are_resized_to_the_scaled_size(scale: int) -> None:
    data = encoded(64, 96, "PNG")
    np.testing.assert_array_equal(decode(data, scale=scale), resize(decode(data), (64 // scale, 96 // scale)))


@pytest.mark.usefixtures("decoder")
@pytest.mark.parametrize("end", [3, 50, -200, -60])
def test_a_truncated_jpeg_is_refused(end: int) -> None:
    with pytest.raises(ValueError, match="the image cannot be decoded"):
        decode(encoded(64, 96)[:end])


def test_pixels_of_another_shape_than_out_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\[64, 96, 3\], not \[64, 95, 3\]"):
        decode(encoded(64, 96), out=np.empty((64, 95, 3), np.uint8))


@pytest.mark.parametrize("factor", [2, 3, 4, 8])
@pytest.mark.parametrize("with_opencv", [True, False])
def test_a_mean_over_squares_is_rounded_half_up_as_pillow_does(
    monkeypatch: pytest.MonkeyPatch, factor: int, with_opencv: bool
) -> None:
    if with_opencv:
        pytest.importorskip("cv2")
    else:
        monkeypatch.setattr(resizing, "_opencv", lambda: None)
    pixels = np.random.default_rng(factor).integers(0, 256, (24 * factor, 40 * factor, 3), dtype=np.uint8)
    squares = pixels.reshape(24, factor, 40, factor, 3).sum(axis=(1, 3), dtype=np.int64)
    want = (2 * squares + factor**2) // (2 * factor**2)
    if factor != 3:  # Pillow multiplies by a rounded ninth
        np.testing.assert_array_equal(want, np.asarray(Image.fromarray(pixels).reduce(factor)))
    np.testing.assert_array_equal(reduced(pixels, factor), want)
    np.testing.assert_array_equal(resize(pixels, (24, 40)), want)


def test_read_only_rows_are_reduced() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (2, 32, 48, 3), dtype=np.uint8)
    pixels.setflags(write=False)  # like rows of a mapped store
    np.testing.assert_array_equal(reduced(pixels[1], 2), np.asarray(Image.fromarray(pixels[1]).reduce(2)))


@pytest.mark.usefixtures("decoder")
@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "MPO", "PNG", "TIFF", "WEBP", "AVIF"])
def test_images_are_turned_upright(kind: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    frames = {"save_all": True, "append_images": [image_of(8, 8)]} if kind == "MPO" else {}
    data = encoded(24, 40, kind, exif=exif, **frames)
    with Image.open(io.BytesIO(data)) as opened:
        want = np.asarray(ImageOps.exif_transpose(opened).convert("RGB"))
    assert (want.shape[:2] == (40, 24)) == (orientation >= 5)
    np.testing.assert_array_equal(decode(data), want)
    assert header(data) == check(data) == want.shape[:2]
    out = np.zeros(want.shape, np.uint8)
    assert decode(data, out=out) is out
    np.testing.assert_array_equal(out, want)
    assert decode(data, scale=2).shape[:2] == (want.shape[0] // 2, want.shape[1] // 2)


@pytest.mark.usefixtures("decoder")
def test_orientation_is_also_found_in_xmp_and_at_the_end_of_a_png() -> None:
    xmp = b'<x:xmpmeta><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    exif = Image.Exif()
    exif[0x0112] = 6
    png = encoded(24, 40, "PNG", exif=exif)
    at = png.index(b"eXIf") - 4
    end = at + 12 + int.from_bytes(png[at : at + 4], "big")
    late = png[:at] + png[end:-12] + png[at:end] + png[-12:]
    for data in (encoded(24, 40, xmp=xmp), late):
        assert header(data) == check(data) == decode(data).shape[:2] == (40, 24)


@pytest.mark.usefixtures("decoder")
@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        *(("JPEG", mode) for mode in ("L", "CMYK", "YCbCr", "RGB")),
        *(("PNG", mode) for mode in ("1", "L", "LA", "P", "RGB", "RGBA")),
        *(("TIFF", mode) for mode in ("1", "L", "LA", "P", "CMYK", "RGB", "RGBA")),  # Pillow 12.3 cannot read its own YCbCr
        *(("WEBP", mode) for mode in ("L", "RGB", "RGBA")),
        *(("GIF", mode) for mode in ("1", "L", "P", "RGB")),
    ],
)
def test_opaque_pixels_are_those_of_pillow(kind: str, mode: str) -> None:
    data = saved(image_of(24, 40).convert(mode), kind)
    np.testing.assert_array_equal(decode(data), np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))


DEEP = np.array([[0, 257, 65535], [128, 129, 32896]], np.uint16)
BIG_ENDIAN = Image.frombytes("I;16B", (3, 2), DEEP.astype(">u2").tobytes())


@pytest.mark.parametrize(
    ("data", "want"),
    [
        pytest.param(saved(Image.fromarray(DEEP), "PNG"), [[0, 1, 255], [0, 1, 128]], id="PNG"),
        pytest.param(saved(Image.fromarray(DEEP), "TIFF"), [[0, 1, 255], [0, 1, 128]], id="TIFF"),
        pytest.param(saved(BIG_ENDIAN, "TIFF"), [[0, 1, 255], [0, 1, 128]], id="big-endian TIFF"),
        pytest.param(saved(Image.fromarray(DEEP.astype(np.int32)), "TIFF"), [[0, 1, 255], [0, 1, 128]], id="32-bit TIFF"),
        pytest.param(b"P5 3 2 65535\n" + DEEP.astype(">u2").tobytes(), [[0, 1, 255], [0, 1, 128]], id="PGM"),
        pytest.param(
            saved(Image.fromarray(DEEP), "TIFF", tiffinfo={262: 0}), [[255, 254, 0], [255, 254, 127]], id="white is 0"
        ),
        pytest.param(saved(Image.fromarray(DEEP), "PNG", transparency=0), [[255, 1, 255], [0, 1, 128]], id="transparent"),
        pytest.param(
            saved(Image.fromarray(np.array([[0, 0.5, 1]], np.float32)), "TIFF"), [[0, 128, 255]], id="floats from 0 to 1"
        ),
    ],
)
def test_deep_grey_becomes_eight_bits(data: bytes, want: list[list[int]]) -> None:
    pixels = decode(data)
    assert pixels[..., 0].tolist() == want
    assert (pixels == pixels[..., :1]).all()


@pytest.mark.parametrize(
    ("pixels", "reason"),
    [
        (np.array([[0, 255.0]], np.float32), "its floats range from 0 to 255, expected 0 to 1"),
        (np.array([[0, np.nan]], np.float32), "its floats range from nan to nan"),
        (np.array([[0, 65536]], np.int32), "its grey levels range from 0 to 65536, expected 0 to 65535"),
        (np.array([[-1, 9]], np.int32), "its grey levels range from -1 to 9"),
    ],
)
def test_grey_levels_without_a_known_range_are_refused(pixels: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        decode(saved(Image.fromarray(pixels), "TIFF"))


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP"])
def test_transparent_pixels_are_composited_on_white(kind: str) -> None:
    colours = np.dstack([np.asarray(image_of(24, 40)), np.full((24, 40), 255, np.uint8)])
    colours[:5, :, 3] = 0
    colours[5, :, 3] = 51  # a fifth
    pixels = decode(saved(Image.fromarray(colours), kind, **({"lossless": True} if kind == "WEBP" else {})))
    assert (pixels[:5] == 255).all()
    assert (pixels[6:] == colours[6:, :, :3]).all()
    assert np.abs(pixels[5] - (0.2 * colours[5, :, :3] + 0.8 * 255)).max() <= 0.5 + 1e-6


@pytest.mark.parametrize("kind", ["PNG", "GIF"])
def test_a_transparent_colour_of_a_palette_is_white(kind: str) -> None:
    image = Image.new("P", (4, 4), 0)
    image.putpalette([10, 20, 30, 200, 100, 0])
    image.putpixel((1, 2), 1)
    pixels = decode(saved(image, kind, transparency=0))
    assert (pixels[2, 1].tolist(), pixels[0, 0].tolist()) == ([200, 100, 0], [255, 255, 255])


@pytest.mark.parametrize("kind", ["GIF", "PNG", "TIFF", "WEBP"])
def test_the_first_frame_is_read(kind: str) -> None:
    first = image_of(24, 40).convert("P") if kind == "GIF" else image_of(24, 40)
    settings = {"lossless": True} if kind == "WEBP" else {}
    data = saved(first, kind, save_all=True, append_images=[first.transpose(Image.Transpose.FLIP_LEFT_RIGHT)], **settings)
    assert has_frames(data)
    assert not has_frames(saved(first, kind))
    np.testing.assert_array_equal(decode(data), np.asarray(first.convert("RGB")))


def png_bomb(side: int) -> bytes:
    """Return a small PNG file that claims to be a large square."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(99))) + chunk(b"IEND", b"")


def jpeg_bomb(side: int) -> bytes:
    data = encoded(16, 16)
    at = data.index(b"\xff\xc0") + 5
    return data[:at] + struct.pack(">HH", side, side) + data[at + 4 :]


@pytest.mark.usefixtures("decoder")
@pytest.mark.parametrize("data", [png_bomb(30_000), jpeg_bomb(60_000)], ids=["PNG", "JPEG"])
def test_images_with_too_many_pixels_are_refused(data: bytes) -> None:
    for look in (header, check, decode):
        with pytest.raises(ValueError, match="exceeds limit of 178956970 pixels"):
            look(data)


@pytest.mark.parametrize("kind", ["BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP"])
def test_truncated_images_are_found(kind: str) -> None:
    data = encoded(60, 80, kind)
    assert check(data) == (60, 80)
    for look in (check, decode):
        with pytest.raises(ValueError, match="the image cannot be decoded"):
            look(data[: len(data) * 2 // 3])


def test_formats_that_start_programs_are_not_opened() -> None:
    with pytest.raises(ValueError, match=r"the image cannot be decoded$"):
        header(saved(image_of(8, 8), "EPS"))


@pytest.mark.parametrize("pixels", ["bytes", "decoded"])
def test_images_that_cannot_be_used_are_quarantined(tmp_path: Path, pixels: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    files = {
        "a/turned.jpg": encoded(40, 24, exif=exif),
        "a/late.gif": encoded(24, 40, "GIF", save_all=True, append_images=[image_of(24, 40).rotate(90)]),
        "b/bomb.png": png_bomb(30_000),
        "b/cut.jpg": encoded(24, 40)[:400],
        "b/empty.webp": b"",
        "c/good.JPEG": encoded(24, 40),
    }
    for name, data in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    _, rows, bad = read(Images, tmp_path, pixels=pixels)
    assert [one.source for one in bad] == ["b/bomb.png", "b/cut.jpg", "b/empty.webp"]
    assert [one.reason.partition(":")[0] for one in bad] == [*["the image cannot be decoded"] * 2, "the file is empty"]
    assert [(row["path"], row["label"], row["height"], row["width"]) for row in rows] == [
        ("a/late.gif", "a", 24, 40),
        ("a/turned.jpg", "a", 24, 40),
        ("c/good.JPEG", "c", 24, 40),
    ]
    assert Images.remarks(Images.units(tmp_path, Choices()), Choices()) == [
        "read the first frame only of files with several, such as late.gif"
    ]
