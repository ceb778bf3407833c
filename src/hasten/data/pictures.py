"""Decode and resize images with libjpeg-turbo (simplejpeg), Pillow and OpenCV.

JPEG files are decoded by simplejpeg where it is installed and by Pillow otherwise. Both use libjpeg-turbo's accurate integer
transform, so the pixels are equal. A reduction by a whole number is a mean over squares, rounded half up, which for powers
of two is Pillow's `Image.reduce`; by two OpenCV does the same several times as fast, where it is installed. Any other size
is Pillow's bilinear filter with antialiasing.
"""

from __future__ import annotations

import io
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from hasten.core.errors import MachineError

Pixels = npt.NDArray[np.uint8]
SCALES = (1, 2, 4, 8)
"""Reductions that libjpeg-turbo can make while it decodes."""
_JPEG = b"\xff\xd8\xff"


def decode(
    data: bytes | memoryview, size: tuple[int, int] | None = None, out: Pixels | None = None, *, scale: int = 1
) -> Pixels:
    """Decode an image file to `uint8 [height, width, 3]`, RGB.

    Args:
        data: The file's bytes.
        size: Height and width to resize to; None keeps the size that `scale` gives.
        out: Array to write the pixels to, such as the image's row of a batch; None allocates one.
        scale: Decode JPEG files at 1/2, 1/4 or 1/8 of their size, rounded up: faster, but with other pixels than decoding
            at full size and resizing. Other formats are decoded and resized to the same height and width.

    Raises:
        ValueError: The data is not an image, or damaged; or `out` has another shape than the image.
        MachineError: Pillow is not installed.
    """
    if bytes(data[:3]) == _JPEG:
        pixels = decode_jpeg(data, out if size is None else None, scale=scale)
    else:
        pixels = _by_pillow(data, scale)
    if size is not None and pixels.shape[:2] != size:
        pixels = resize(pixels, size)
    if out is None or pixels is out:
        return pixels
    if out.shape != pixels.shape:
        raise ValueError(f"its pixels have the shape {list(pixels.shape)}, not {list(out.shape)}")
    out[...] = pixels
    return out


def decode_jpeg(data: bytes | memoryview, out: Pixels | None = None, *, scale: int = 1) -> Pixels:
    """Decode a JPEG file to `uint8 [height, width, 3]`, RGB.

    Args:
        data: The file's bytes.
        out: Array to decode into, used if it has the image's shape and is contiguous.
        scale: As in `decode`.

    Raises:
        ValueError: The file is damaged, or of a kind that simplejpeg cannot convert, such as CMYK.
        MachineError: Neither simplejpeg nor Pillow is installed.
    """
    fast = _simplejpeg()
    if fast is None:
        return _by_pillow(data, scale)
    data = memoryview(data).cast("B")  # Arrow calls the bytes of its buffers signed, which simplejpeg refuses
    try:
        height, width, *_ = fast.decode_jpeg_header(data)
        height, width = scaled_size(height, width, scale)
        if out is None or out.shape != (height, width, 3) or not out.flags.c_contiguous:
            out = np.empty((height, width, 3), np.uint8)
        limits = {"min_height": height, "min_width": width} if scale > 1 else {}
        fast.decode_jpeg(data, "RGB", buffer=out, **limits)
    except ValueError as error:
        raise ValueError("no image that can be decoded: damaged JPEG") from error
    return out


def scaled_size(height: int, width: int, scale: int) -> tuple[int, int]:
    """Height and width of an image decoded at 1/`scale` of its size."""
    return -(-height // scale), -(-width // scale)


def header(data: bytes) -> tuple[int, int]:
    """Height and width of an image file, from its first bytes.

    Raises:
        ValueError: It is no image.
    """
    image = _pillow()
    try:
        with image.open(io.BytesIO(data)) as opened:
            width, height = opened.size
    except (OSError, SyntaxError) as error:
        raise ValueError("no image that can be decoded") from error
    return height, width


def resize(pixels: Pixels, size: tuple[int, int]) -> Pixels:
    """Resize to (height, width): a mean over squares where both shrink by the same whole number, else bilinear."""
    height, width = pixels.shape[:2]
    factor = height // size[0]
    if factor > 1 and (size[0] * factor, size[1] * factor) == (height, width):
        return reduced(pixels, factor)
    image = _pillow()
    return np.asarray(image.fromarray(pixels).resize((size[1], size[0]), image.Resampling.BILINEAR))


def reduced(pixels: Pixels, factor: int) -> Pixels:
    """The mean over squares of `factor` by `factor` pixels, rounded half up, `[height / factor, width / factor, 3]`."""
    height, width = pixels.shape[:2]
    if factor == 2 and height % 2 == width % 2 == 0 and (fast := _opencv()) is not None:
        halved: Pixels = fast.resize(pixels, (width // 2, height // 2), interpolation=fast.INTER_AREA)
        return halved
    rows: npt.NDArray[Any] = pixels[::factor].astype(np.uint16 if factor <= 16 else np.uint32)
    for row in range(1, factor):  # whole rows first: they lie together
        rows += pixels[row::factor]
    total = rows[:, ::factor].copy()
    for column in range(1, factor):
        total += rows[:, column::factor]
    total += factor * factor // 2
    if factor & (factor - 1) == 0:
        total >>= 2 * (factor.bit_length() - 1)
    else:
        total //= factor * factor
    return total.astype(np.uint8)


def _by_pillow(data: bytes | memoryview, scale: int) -> Pixels:
    image = _pillow()
    try:
        with image.open(io.BytesIO(data)) as opened:
            size = scaled_size(opened.height, opened.width, scale)
            if scale > 1:  # JPEG is decoded at that size; other formats ignore it
                opened.draft("RGB", (max(opened.width // scale, 1), max(opened.height // scale, 1)))
            pixels = np.asarray(opened.convert("RGB"))
    except (OSError, SyntaxError) as error:
        raise ValueError("no image that can be decoded") from error
    return pixels if pixels.shape[:2] == size else resize(pixels, size)


@lru_cache(maxsize=1)
def _simplejpeg() -> Any:
    try:
        import simplejpeg  # noqa: PLC0415  of the extra `images`
    except ImportError:
        return None
    return simplejpeg


@lru_cache(maxsize=1)
def _pillow() -> Any:
    try:
        from PIL import Image  # noqa: PLC0415  of the extra `images`
    except ImportError as error:
        raise MachineError("images need Pillow: pip install 'hasten[images]'.") from error
    return Image


@lru_cache(maxsize=1)
def _opencv() -> Any:
    """What halves pictures faster, where it is installed."""
    try:
        import cv2  # noqa: PLC0415  of the extra `recipes`
    except ImportError:
        return None
    return cv2
