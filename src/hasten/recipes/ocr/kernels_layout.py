"""Channels that stand for the pixels of a square, laid out as these pixels, and back: in threads.

What `F.pixel_shuffle` gives, without the copies around it: pixels are read as a convolution leaves them, channels last, and
bfloat16 numbers are widened, or narrowed, on the way.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from hasten.recipes.ocr.kernels_norm import narrow, wide
from hasten.recipes.ocr.maps.compiled import kernel, parallel_kernel

Halves = npt.NDArray[np.uint16]
Floats = npt.NDArray[np.float32]


@kernel
def _lay_line(pixels: Halves, first: Any, side: Any, line: Floats) -> None:
    for at in range(len(pixels)):
        for column in range(side):
            line[at * side + column] = wide(pixels[at, first + column])


@kernel
def _move_line(pixels: Halves, first: Any, side: Any, line: Halves) -> None:
    for at in range(len(pixels)):
        for column in range(side):
            line[at * side + column] = pixels[at, first + column]


@kernel
def _take_line(line: Floats, first: Any, side: Any, pixels: Halves) -> None:
    for at in range(len(pixels)):
        for column in range(side):
            pixels[at, first + column] = narrow(line[at * side + column])


@parallel_kernel
def lay_out(x: Halves, side: int, out: Floats, parts: int) -> None:
    """Put the numbers of `x` where they belong.

    Args:
        x: `[batch, height, width, maps * side * side]`, bfloat16.
        side: Of the square that a pixel becomes.
        out: Gets them, `[batch, maps, side * height, side * width]`.
        parts: Threads.
    """
    batch, height, _, channels = x.shape
    for part in numba.prange(parts):
        for row in range(part * batch * height // parts, (part + 1) * batch * height // parts):
            picture, y = row // height, row % height
            for first in range(0, channels, side):
                line = first // side
                _lay_line(x[picture, y], first, side, out[picture, line // side, y * side + line % side])


@parallel_kernel
def move_out(x: Halves, side: int, out: Halves, parts: int) -> None:
    """`lay_out`, but the numbers stay bfloat16."""
    batch, height, _, channels = x.shape
    for part in numba.prange(parts):
        for row in range(part * batch * height // parts, (part + 1) * batch * height // parts):
            picture, y = row // height, row % height
            for first in range(0, channels, side):
                line = first // side
                _move_line(x[picture, y], first, side, out[picture, line // side, y * side + line % side])


@parallel_kernel
def take_back(outer: Floats, side: int, inner: Halves, parts: int) -> None:
    """The other way: from `[batch, maps, side * height, side * width]` to `[batch, height, width, maps * side * side]`."""
    batch, height, _, channels = inner.shape
    for part in numba.prange(parts):
        for row in range(part * batch * height // parts, (part + 1) * batch * height // parts):
            picture, y = row // height, row % height
            for first in range(0, channels, side):
                line = first // side
                _take_line(outer[picture, line // side, y * side + line % side], first, side, inner[picture, y])
