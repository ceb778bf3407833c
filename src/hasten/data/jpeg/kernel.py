"""The decoder as one kernel, so that the interpreter is asked once a picture."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numba
import numpy as np
from numba import types

from hasten.data.jpeg.codes import DAMAGED, FINE, SLACK, keep_planes, without_stuffing
from hasten.data.jpeg.pixels import ROOM, keep_pixels, sums_bytes
from hasten.data.jpeg.tables import PLACES, tables_of

__all__ = ["DAMAGED", "FINE", "decode_into", "tables_of", "work_bytes"]

_ALIGNED = 64
_BLOCKS_BYTES = 320
_READ = types.Array(types.uint8, 1, "C", readonly=True)
_KIND = types.int64(
    _READ, types.int64, types.uint32[:, :, ::1], types.int32[:, :, ::1], types.int16[:, :, :, ::1],
    types.uint8[::1], types.uint8[:, :, ::1], types.int64, types.int64, types.boolean,
)  # fmt: skip


def _compiled(sources: int) -> Callable[..., int]:
    """The kernel. Numba keeps it on disk from run to run, and looks at changes of this file and of `sources` alone."""

    @numba.njit([_KIND], cache=True, nogil=True)
    def decode_into(  # noqa: PLR0917  as the kernels that it calls
        data: Any, scan: int, look: Any, longer: Any, factors: Any, work: Any, out: Any,
        height: int, width: int, halve: bool,  # noqa: FBT001
    ) -> int:  # fmt: skip
        """Decode a file into pixels.

        Args:
            data: The file, [bytes].
            scan: Where its codes begin.
            look: Entries of `tables_of`.
            longer: What goes with them.
            factors: What numbers are multiplied by.
            work: Memory of `work_bytes`.
            out: `[height, width, 3]`, or half of both where it is to be halved.
            height: Of the picture.
            width: Of the picture.
            halve: Whether to take the mean over two by two pixels.

        Returns:
            `FINE`, or `DAMAGED`: then another decoder may know more, and what is in `out` is of no use.
        """
        _ = sources
        across, down = (width + 15) // 16, (height + 15) // 16
        size = len(data) - scan
        first = work.ctypes.data + np.uintp(_ALIGNED - 1)
        block = np.uintp(first - first % np.uintp(_ALIGNED))
        planes = block + np.uintp(_BLOCKS_BYTES)
        sums = planes + np.uintp(384 * across * down + ROOM)
        codes = sums + np.uintp(sums_bytes(across))
        count = without_stuffing(data.ctypes.data + np.uintp(scan), size, codes)
        if count < 0:
            return DAMAGED
        for number in range(_BLOCKS_BYTES):  # a damaged file may have left something
            work[np.int64(block - work.ctypes.data) + number] = 0
        state = keep_planes(
            codes, count, np.uintp(look.ctypes.data), np.uintp(longer.ctypes.data), np.uintp(factors.ctypes.data),
            np.uintp(PLACES.ctypes.data), block, planes, across, down,
        )  # fmt: skip
        if state == DAMAGED:
            return DAMAGED
        keep_pixels(planes, across, down, sums, np.uintp(out.ctypes.data), height, width, halve)
        return state

    return cast("Callable[..., int]", decode_into)


def _sources() -> int:
    """A number that changes with what the kernel is compiled from."""
    return zlib.crc32(b"".join(part.read_bytes() for part in sorted(Path(__file__).parent.glob("*.py"))))


decode_into = _compiled(_sources())


def work_bytes(size: int, height: int, width: int) -> int:
    """Memory that a file of so many bytes and pixels is decoded in."""
    across, down = -(-width // 16), -(-height // 16)
    return 2 * _ALIGNED + _BLOCKS_BYTES + 384 * across * down + ROOM + sums_bytes(across) + size + SLACK
