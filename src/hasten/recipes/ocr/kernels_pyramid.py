"""What a feature pyramid does with bfloat16 pixels of a CPU between its convolutions, in threads.

As operations of PyTorch, coarse features are first enlarged, which writes them several times as large, and then read again
to be added or laid beside others. Here each pixel is taken from where it is. The same numbers.
"""

from __future__ import annotations

import numba
import numpy as np
import numpy.typing as npt

from hasten.recipes.ocr.kernels_norm import narrow, wide
from hasten.recipes.ocr.maps.compiled import kernel, parallel_kernel

Halves = npt.NDArray[np.uint16]


@kernel
def _add_pixel(fine: Halves, coarse: Halves) -> None:
    for i in range(len(fine)):
        fine[i] = narrow(wide(fine[i]) + wide(coarse[i]))


@kernel
def _put_pixel(one: Halves, out: Halves) -> None:
    for i in range(len(one)):
        out[i] = one[i]


@parallel_kernel
def add_coarse(fine: Halves, coarse: Halves, parts: int) -> None:
    """Add to each pixel that of half the size at its place.

    Args:
        fine: `[batch, height, width, channels]`; gets the sum.
        coarse: `[batch, height / 2, width / 2, channels]`.
        parts: Threads.
    """
    batch, height, width, _ = fine.shape
    for part in numba.prange(parts):
        for row in range(part * batch * height // parts, (part + 1) * batch * height // parts):
            picture, y = row // height, row % height
            for x in range(width):
                _add_pixel(fine[picture, y, x], coarse[picture, y // 2, x // 2])


@parallel_kernel
def side_by_side(levels: tuple[Halves, ...], out: Halves, parts: int) -> None:
    """Lay the pixels of all levels beside one another.

    Args:
        levels: `[batch, height / 2^n, width / 2^n, channels]` for n = 0, 1, and so on.
        out: Gets them, `[batch, height, width, levels * channels]`.
        parts: Threads.
    """
    batch, height, width, _ = out.shape
    channels = levels[0].shape[3]
    for part in numba.prange(parts):
        for row in range(part * batch * height // parts, (part + 1) * batch * height // parts):
            picture, y = row // height, row % height
            for level in range(len(levels)):
                line, first = levels[level][picture, y >> level], level * channels
                for x in range(width):
                    _put_pixel(line[x >> level], out[picture, y, x, first : first + channels])
