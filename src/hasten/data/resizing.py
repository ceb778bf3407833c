"""Resize images: average squares of pixels where the factor is a whole number, otherwise bilinear with antialiasing.

Averages round half up. For powers of two this equals Pillow's `Image.reduce`. OpenCV, if installed, halves images several
times faster, to the same pixels.
"""

from __future__ import annotations

import warnings
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from hasten.core.errors import MachineError

Pixels = npt.NDArray[np.uint8]


def resize(pixels: Pixels, size: tuple[int, int]) -> Pixels:
    """Resize to (height, width): average squares if both shrink by the same whole number, otherwise bilinear."""
    height, width = pixels.shape[:2]
    factor = height // size[0]
    if factor > 1 and (size[0] * factor, size[1] * factor) == (height, width):
        return reduced(pixels, factor)
    image = pillow()
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


@lru_cache(maxsize=1)
def pillow() -> Any:
    """Return Pillow's module `Image`, with all formats registered.

    Raises:
        MachineError: Pillow is not installed.
    """
    try:
        from PIL import Image  # noqa: PLC0415  of the extra `images`
    except ImportError as error:
        raise MachineError("images need Pillow: pip install 'hasten[images]'.") from error
    Image.init()
    # Pillow warns of images with half the pixels that it refuses, such as those of many phones.
    warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
    return Image


@lru_cache(maxsize=1)
def _opencv() -> Any:
    """Return OpenCV, which halves images faster, or None if it is not installed."""
    try:
        import cv2  # noqa: PLC0415  of the extra `recipes`
    except ImportError:
        return None
    return cv2
