"""Decode and resize images: by kernels of our own, by simplejpeg where it is installed, or by Pillow, with the same pixels.

The latter two decode by libjpeg-turbo, whose accurate integer transform is exact; the kernels (`hasten.data.jpeg`) do as
it does, once a process has decoded a lot and where Numba is installed. So the pixels are equal. A reduction by a whole
number is a mean over squares, rounded half up, which for powers of two is Pillow's `Image.reduce`; by two OpenCV does the
same several times as fast, where it is installed. Any other size is Pillow's bilinear filter with antialiasing.
"""

from __future__ import annotations

import io
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from hasten.core.errors import MachineError
from hasten.data.jpeg.decode import decode_jpeg, plain

Pixels = npt.NDArray[np.uint8]
_JPEG = b"\xff\xd8\xff"


def decode(data: bytes | memoryview, size: tuple[int, int] | None = None, out: Pixels | None = None) -> Pixels:
    """The pixels of an image file, `uint8 [height, width, 3]`.

    Args:
        data: The file's bytes.
        size: Height and width to resize to; None keeps the image's own.
        out: Where to write them, such as a picture's place in a batch; None makes an array.

    Raises:
        ValueError: It is no image, or a damaged one; or `out` has another shape than its pixels.
        MachineError: Neither Pillow nor simplejpeg is installed.
    """
    pixels = _whole_or_halved(plain(data), size, out)
    if size is not None and pixels.shape[:2] != size:
        pixels = resize(pixels, size)
    if out is None or pixels is out:
        return pixels
    if out.shape != pixels.shape:
        raise ValueError(f"the place for the pixels is {list(out.shape)}, and they are {list(pixels.shape)}")
    out[...] = pixels
    return out


def _whole_or_halved(data: bytes | memoryview, size: tuple[int, int] | None, out: Pixels | None) -> Pixels:
    """The pixels of an image file by the fastest decoder that knows it; of half the size where that is `size`, or whole."""
    if data[:3] != _JPEG:
        return _by_pillow(data)
    try:
        pixels = decode_jpeg(data, size, out)
    except ValueError as error:
        raise ValueError("no image that can be decoded: damaged JPEG") from error
    return _by_pillow(data) if pixels is None else pixels


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


def _by_pillow(data: bytes | memoryview) -> Pixels:
    image = _pillow()
    try:
        with image.open(io.BytesIO(data)) as opened:
            return np.asarray(opened.convert("RGB"))
    except (OSError, SyntaxError) as error:
        raise ValueError("no image that can be decoded") from error


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
