"""Pixels of red, green and blue out of those of brightness and colours, whole or half as high and wide."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba.extending import register_jitable

from hasten.data.jpeg.colours import STEP, keep_halved, keep_weighed, keep_whole
from hasten.data.jpeg.vectors import byte_at, keep_byte, keep_short, short_at

ROOM = 256
"""Bytes before and behind rows of sums, and behind planes, that may be read or written."""


@numba.njit(nogil=True, forceinline=True)
def _weigh(near: Any, far: Any, sums: Any, columns: int) -> None:
    """A row of colours between two others, with its first and last once more beside it."""
    for column in range(0, columns, STEP):
        keep_weighed(near + np.uintp(column), far + np.uintp(column), sums + np.uintp(2 * column))
    keep_short(sums - np.uintp(2), short_at(sums))
    keep_short(sums + np.uintp(2 * columns), short_at(sums + np.uintp(2 * (columns - 1))))


@numba.njit(nogil=True, forceinline=True)
def _copy(at: Any, to: Any, count: int) -> None:
    for number in range(count):
        keep_byte(to + np.uintp(number), byte_at(at + np.uintp(number)))


@numba.njit(nogil=True)
def keep_pixels(  # noqa: PLR0917  a kernel is called by position
    planes: Any,
    across: int,
    down: int,
    work: Any,
    out: Any,
    height: int,
    width: int,
    halve: bool,  # noqa: FBT001
) -> None:
    """Write the pixels.

    Args:
        planes: The address of brightness and colours, as `keep_planes` wrote them.
        across: Squares of 16 pixels from left to right.
        down: Those from top to bottom.
        work: An address of `sums_bytes` bytes.
        out: The address of the first pixel, of three bytes.
        height: Of the picture before it is halved.
        width: Of the picture before it is halved; both are even where it is.
        halve: Whether to take the mean over two by two pixels, rounded half up.
    """
    wide, narrow = np.uintp(16 * across), np.uintp(8 * across)
    blues = planes + wide * np.uintp(16 * down)
    reds = blues + narrow * np.uintp(8 * down)
    columns, rows = (width + 1) // 2, (height + 1) // 2
    apart = np.uintp(2 * (8 * across) + 2 * ROOM)
    sums = work + np.uintp(ROOM)
    spare = work + np.uintp(4) * apart
    row_bytes = np.uintp(3 * (columns if halve else width))
    for row in range(rows):
        here, above, below = np.uintp(row), np.uintp(max(row - 1, 0)), np.uintp(min(row + 1, rows - 1))
        for number in range(2):
            plane = reds if number else blues
            first = sums + np.uintp(2 * number) * apart
            _weigh(plane + here * narrow, plane + above * narrow, first, columns)
            _weigh(plane + here * narrow, plane + below * narrow, first + apart, columns)
        lights = planes + np.uintp(2 * row) * wide
        for column in range(0, columns, STEP):
            part, light = sums + np.uintp(2 * column), lights + np.uintp(2 * column)
            is_whole = column + STEP <= columns
            if halve:
                place = out + here * row_bytes + np.uintp(3 * column)
                keep_halved(light, wide, part, apart, place if is_whole else spare)
                if not is_whole:
                    _copy(spare, place, 3 * (columns - column))
                continue
            is_whole = is_whole and 2 * (column + STEP) <= width
            for lower in range(min(2, height - 2 * row)):
                place = out + np.uintp(2 * row + lower) * row_bytes + np.uintp(6 * column)
                keep_whole(
                    light + np.uintp(lower) * wide, part + np.uintp(lower) * apart, apart, place if is_whole else spare
                )
                if not is_whole:
                    _copy(spare, place, 3 * (width - 2 * column))


@register_jitable
def sums_bytes(across: int) -> int:
    """Bytes that `keep_pixels` works in."""
    return 4 * (16 * across + 2 * ROOM) + 6 * STEP
