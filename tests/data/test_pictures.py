"""All image libraries decode and resize images to the same pixels."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from hasten.data import pictures
from hasten.data.pictures import decode, reduced, resize

KINDS: dict[str, dict[str, Any]] = {
    "4:2:0": {"subsampling": "4:2:0"},
    "4:2:2": {"subsampling": "4:2:2"},
    "4:4:4": {"subsampling": "4:4:4"},
    "progressive": {"progressive": True},
    "restart markers": {"restart_marker_blocks": 2},
    "RGB": {"keep_rgb": True},
    "quality 20": {"quality": 20},
}


def encoded(height: int, width: int, kind: str = "JPEG", **settings: Any) -> bytes:
    coarse = np.random.default_rng(0).integers(0, 256, (height // 8 + 2, width // 8 + 2, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC).save(file, kind, **settings)
    return file.getvalue()


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
        monkeypatch.setattr(pictures, "_opencv", lambda: None)
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
