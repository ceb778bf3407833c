"""The k-th largest of many numbers, by counting their leading bits: no number is moved that is not in question.

The bits of a float32, the lower ones turned over where it is negative, are integers in the same order. So the numbers are
counted by their highest 11 bits, those are kept that share them with the one that is looked for, and so on with the next 11
and the last 10.

Source: the selection step of radix sort, Knuth 1998, "The Art of Computer Programming", volume 3, 5.2.5.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hasten.recipes.ocr.maps.compiled import kernel

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]

_LOW = np.int32(0x7FFFFFFF)
_DIGITS = ((np.int32(21), np.int32(0x7FF)), (np.int32(10), np.int32(0x7FF)), (np.int32(0), np.int32(0x3FF)))
"""Which bits are counted: how far they are shifted, and what is kept of them then."""


@kernel
def keys_of(values: Floats, keys: Ints) -> None:
    """Put integers in the order of the numbers into `keys`; what is not a number comes last."""
    bits = values.view(np.int32)
    for i in range(len(values)):
        turned = bits[i] ^ ((bits[i] >> np.int32(31)) & _LOW)
        keys[i] = turned if values[i] == values[i] else _LOW


@kernel
def kth_largest(values: Floats, k: int) -> float:
    """The `k`-th largest, the first is the largest; not a number if that is what it is.

    Args:
        values: The numbers, which may be infinite.
        k: From 1 to as many as they are.
    """
    keys, counts = np.empty(len(values), np.int32), np.empty(2048, np.int64)
    keys_of(values, keys)
    size, left, found = len(values), k, np.int32(0)
    for shift, kept in _DIGITS:
        flip = np.int32(1024) if shift == 21 else np.int32(0)  # the highest bit is the sign: negative ones come first
        counts[:] = 0
        for i in range(size):
            counts[((keys[i] >> shift) & kept) ^ flip] += 1
        digit = np.int64(kept)
        while counts[digit] < left:
            left -= counts[digit]
            digit -= 1
        wanted, put = np.int32(digit) ^ flip, 0
        for i in range(size):
            key = keys[i]
            keys[put] = key
            put += 1 if ((key >> shift) & kept) == wanted else 0
        size, found = put, keys[0]
    result = np.empty(1, np.int32)
    result[0] = found ^ ((found >> np.int32(31)) & _LOW)
    return float(result.view(np.float32)[0])
