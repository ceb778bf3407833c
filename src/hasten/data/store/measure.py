"""Where rows begin, and where each ends once they are laid one after another: looked up before they are copied."""

from __future__ import annotations

import numba
import numpy as np
import numpy.typing as npt
from numba import types

_READ = types.Array(types.int64, 1, "C", readonly=True)
_WRITTEN = types.int64[::1]


@numba.njit([types.boolean(types.int64, types.int64, _READ, _WRITTEN, _WRITTEN)], cache=True, nogil=True)
def measure_rows(
    count: int, width: int, places: npt.NDArray[np.int64], starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> bool:
    """Find where rows of a table begin, and where each ends when they are laid one after another.

    Args:
        count: Rows of the table.
        width: Bytes of each.
        places: Which rows, `[picked]`.
        starts: Gets where each of them begins, `[picked]`.
        ends: Gets 0 and then their ends, `[picked + 1]`.

    Returns:
        Whether all are rows of the table.
    """
    ends[0] = 0
    for i in range(len(places)):
        if not 0 <= places[i] < count:
            return False
        starts[i] = places[i] * width
        ends[i + 1] = ends[i] + width
    return True


@numba.njit([types.int64(_READ, _READ, _WRITTEN, _WRITTEN)], cache=True, nogil=True)
def measure_ranges(
    offsets: npt.NDArray[np.int64],
    places: npt.NDArray[np.int64],
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
) -> int:
    """Find where ranges of bytes begin, and where each ends when they are laid one after another.

    Args:
        offsets: Where each range begins, and so where the one before it ends, `[ranges + 1]`.
        places: Which ranges, `[picked]`.
        starts: Gets where each of them begins, `[picked]`.
        ends: Gets 0 and then their ends, `[picked + 1]`.

    Returns:
        The last of these; -1 where one is no range.
    """
    total = 0
    ends[0] = 0
    for i in range(len(places)):
        place = places[i]
        if not 0 <= place < len(offsets) - 1:
            return -1
        size = offsets[place + 1] - offsets[place]
        if size < 0:
            return -1
        total += size
        starts[i] = offsets[place]
        ends[i + 1] = total
    return total
