"""Fisher and Yates' shuffle as NumPy draws it (`_shuffle_raw` and `random_interval`), without a branch on what was drawn."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import types


@numba.njit([types.int64(types.int64[::1], types.int64, types.Array(types.uint32, 1, "C", readonly=True)),
             types.int64(types.int64[::1], types.int64, types.uint32[::1])], cache=True, nogil=True)  # fmt: skip
def shuffle_on(values: Any, last: Any, drawn: Any) -> Any:
    """Go on with a shuffle.

    Args:
        values: What is shuffled, [numbers].
        last: The highest place that has not got its number yet.
        drawn: Random numbers, [draws]; of each the lowest bits count, as many as `last` has, and if those are a higher place
            the next one is looked at.

    Returns:
        The highest place that has none yet when all draws are used up; 0 when all have.
    """
    mask = np.uint32(0)
    while np.int64(mask) < last:
        mask = mask << np.uint32(1) | np.uint32(1)
    used = 0
    while last > 0 and used < len(drawn):
        low = np.int64(mask >> np.uint32(1))
        while last > low and used < len(drawn):
            found = np.int64(drawn[used] & mask)
            used += 1
            fits = found <= last
            place = found if fits else last  # changed for itself, which changes nothing
            values[last], values[place] = values[place], values[last]
            last -= np.int64(fits)
        mask >>= np.uint32(1)
    return last
