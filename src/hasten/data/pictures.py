"""Decode and resize images with libjpeg-turbo (simplejpeg), Pillow and OpenCV.

JPEG files are decoded by simplejpeg if it is installed, and by Pillow otherwise. Both use libjpeg-turbo's accurate integer
transform, so the pixels are equal. Reducing an image by a whole number averages squares of pixels and rounds half up. For
powers of two this equals Pillow's `Image.reduce`. OpenCV, if installed, halves images several times faster. All other sizes
use Pillow's bilinear filter with antialiasing.
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
"""Reductions that libjpeg-turbo can apply while decoding."""
_JPEG = b"\xff\xd8\xff"


def decode(
    data: bytes | memoryview, size: tuple[int, int] | None = None, out: Pixels | None = None, *, scale: int = 1
) -> Pixels:
    """Decode an image file to `uint8 [height, width, 3]`, RGB.

    Args:
        data: The file's bytes.
        size: Height and width to resize to; None keeps the size that `scale` gives.
        out: Array to write the pixels to, such as the image's row of a batch; None allocates one.
        scale: Decode JPEG files at 1/2, 1/4 or 1/8 of their size, rounded up. This is faster, but the pixels differ from
            decoding at full size and resizing. Other formats are decoded and then resized to the same size.

    Raises:
        ValueError: The data is not an image, is damaged, or does not have the shape of `out`.
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
        raise ValueError(f"the image has the shape {list(pixels.shape)}, not {list(out.shape)}")
    out[...] = pixels
    return out


def decode_jpeg(data: bytes | memoryview, out: Pixels | None = None, *, scale: int = 1) -> Pixels:
    """Decode a JPEG file to `uint8 [height, width, 3]`, RGB.

    Args:
        data: The file's bytes.
        out: Array to decode into. It is used only if it has the image's shape and is contiguous.
        scale: See `decode`.

    Raises:
        ValueError: The file is damaged, or of a type that simplejpeg cannot convert, such as CMYK.
        MachineError: Neither simplejpeg nor Pillow is installed.
    """
    fast = _simplejpeg()
    if fast is None:
        return _by_pillow(data, scale)
    data = memoryview(data).cast("B")  # Arrow's buffers have signed bytes, which simplejpeg rejects
    try:
        height, width, *_ = fast.decode_jpeg_header(data)
        height, width = scaled_size(height, width, scale)
        if out is None or out.shape != (height, width, 3) or not out.flags.c_contiguous:
            out = np.empty((height, width, 3), np.uint8)
        limits = {"min_height": height, "min_width": width} if scale > 1 else {}
        fast.decode_jpeg(data, "RGB", buffer=out, **limits)
    except ValueError as error:
        raise ValueError("the image cannot be decoded: damaged JPEG") from error
    return out


def scaled_size(height: int, width: int, scale: int) -> tuple[int, int]:
    """Return the height and width of an image decoded at 1/`scale` of its size."""
    return -(-height // scale), -(-width // scale)


def header(data: bytes) -> tuple[int, int]:
    """Read the height and width of an image file from its first bytes.

    Raises:
        ValueError: The data is not an image.
    """
    image = _pillow()
    try:
        with image.open(io.BytesIO(data)) as opened:
            width, height = opened.size
    except (OSError, SyntaxError) as error:
        raise ValueError("the image cannot be decoded") from error
    return height, width


def resize(pixels: Pixels, size: tuple[int, int]) -> Pixels:
    """Resize to (height, width): average squares if both shrink by the same whole number, otherwise bilinear."""
    height, width = pixels.shape[:2]
    factor = height // size[0]
    if factor > 1 and (size[0] * factor, size[1] * factor) == (height, width):
        return reduced(pixels, factor)
    image = _pillow()
    return np.asarray(image.fromarray(pixels).resize((size[1], size[0]), image.Resampling.BILINEAR))


def reduced(pixels: Pixels, factor: int) -> Pixels:
    """Average squares of `factor` by `factor` pixels, rounded half up, `[height / factor, width / factor, 3]`."""
    height, width = pixels.shape[:2]
    if factor == 2 and height % 2 == width % 2 == 0 and (fast := _opencv()) is not None:
        halved: Pixels = fast.resize(pixels, (width // 2, height // 2), interpolation=fast.INTER_AREA)
        return halved
    rows: npt.NDArray[Any] = pixels[::factor].astype(np.uint16 if factor <= 16 else np.uint32)
    for row in range(1, factor):  # whole rows first: they are contiguous
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
            if scale > 1:  # only JPEG is decoded at that size
                opened.draft("RGB", (max(opened.width // scale, 1), max(opened.height // scale, 1)))
            pixels = np.asarray(opened.convert("RGB"))
    except (OSError, SyntaxError) as error:
        raise ValueError("the image cannot be decoded") from error
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
    """Return OpenCV, which halves images faster, or None if it is not installed."""
    try:
        import cv2  # noqa: PLC0415  of the extra `recipes`
    except ImportError:
        return None
    return cv2
