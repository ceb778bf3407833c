"""Tables that say of the next bits which Huffman code they begin with, and how many bits its value takes (T.81, annex F).

Some programs write a code of its own for each file, so tables are made by a kernel too, in some microseconds.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from numba import types

from hasten.data.jpeg.header import Header

BITS = 10
"""Of the codes that one look tells; longer ones are one in a thousand."""
SLOW = 1 << 6
"""Marks an entry that says nothing: the code is longer than `BITS`."""
BLOCK_ENDS = 128
"""How far the last code of a block goes on: beyond all places, and farther than any damaged block comes."""
LIMITS, FIRSTS, ENTRIES = 0, 32, 64
"""Where the parts of what is known of long codes begin: the first 16 bits that no code of a length reaches, by length; the
number of the first code less that code, by length; entries by the number of their code."""
_MOST_SYMBOLS = 256
LONGER = ENTRIES + _MOST_SYMBOLS
_ZEROS, _LAST = 0xF0, 0x00
"""Symbols without a value: 16 zeros, and the end of a block."""
_MOST_BITS_DC, _MOST_BITS_AC = 11, 10
"""Of a value, with 8 bits a colour (T.81, tables F.1 and F.2)."""

ZIGZAG = np.array(
    [row * 8 + number - row if number % 2 else (number - row) * 8 + row
     for number in range(15) for row in range(max(0, number - 7), min(number, 7) + 1)], np.int64
)  # fmt: skip
"""The place in a block, row by row, of each of its 64 numbers in the order of the file (T.81, figure 5)."""
TWO_BLOCKS_BYTES, OTHER_BYTES = 256, 16
"""Of two blocks whose rows lie in turn, and from the first number of one to that of the other."""
PLACES = np.full(BLOCK_ENDS + 64, TWO_BLOCKS_BYTES, np.int16)
"""The same in bytes from the first number of one of two blocks; what goes beyond its end goes where nobody reads."""
PLACES[:64] = 32 * (ZIGZAG // 8) + 2 * (ZIGZAG % 8)

_READ = types.Array(types.uint8, 1, "C", readonly=True)
Tables = tuple[npt.NDArray[np.uint32], npt.NDArray[np.int32], npt.NDArray[np.int16]]


@numba.njit([types.boolean(_READ, types.boolean, types.uint32[::1], types.int32[::1])], cache=True, nogil=True)
def fill_tables(codes: Any, is_dc: bool, look: Any, longer: Any) -> bool:  # noqa: FBT001  a kernel is called by position
    """Make what the kernels look up.

    An entry holds, from its lowest bit on: 6 bits for the length of code and value together, `SLOW`, 8 bits at 8 for how far
    the place goes on, 5 bits at 16 for the length of the code, and 4 bits at 24 for that of the value.

    Args:
        codes: 16 counts of codes by their length, then the symbols, as in a file.
        is_dc: Whether a symbol is the length of a value alone, as of the first number of a block.
        look: Gets the entries by the next `BITS` bits, [2 ** BITS].
        longer: Gets what is known of longer codes, [LONGER].

    Returns:
        Whether they are codes that a file may have.
    """
    if len(codes) > 16 + _MOST_SYMBOLS:
        return False
    look[:] = SLOW
    code, number = 0, 0
    for length in range(1, 17):
        longer[FIRSTS + length] = number - code
        if code + codes[length - 1] > 1 << length:
            return False
        for _ in range(codes[length - 1]):
            symbol = np.int64(codes[16 + number])
            size = symbol if is_dc else symbol & 15
            if size > (_MOST_BITS_DC if is_dc else _MOST_BITS_AC):
                return False
            onward = 1 if is_dc else (symbol >> 4) + 1
            if not is_dc and size == 0 and symbol != _ZEROS:
                if symbol != _LAST:
                    return False
                onward = BLOCK_ENDS
            entry = length + size | onward << 8 | length << 16 | size << 24
            if length <= BITS:
                look[code << (BITS - length) : (code + 1) << (BITS - length)] = entry
            longer[ENTRIES + number] = entry
            code, number = code + 1, number + 1
        longer[LIMITS + length] = code << (16 - length)
        code <<= 1
    return True


@lru_cache(maxsize=64)
def tables_of(header: Header) -> Tables | None:
    """What files with such a header are decoded by; None where their codes are none.

    Returns:
        Entries, [brightness and colours, DC and AC, 2 ** BITS], what is known of longer codes, [2, 2, LONGER], and what the
        numbers of two blocks are multiplied by, [2, 8 rows, 2 blocks, 8].
    """
    look, longer = np.empty((2, 2, 1 << BITS), np.uint32), np.zeros((2, 2, LONGER), np.int32)
    for of, pair in enumerate(header.codes):
        for kind, codes in enumerate(pair):
            if not fill_tables(np.frombuffer(codes, np.uint8), kind == 0, look[of, kind], longer[of, kind]):
                return None
    factors = np.empty((2, 64), np.int16)
    factors[:, ZIGZAG] = [np.frombuffer(quant, np.uint8) for quant in header.quant]
    return look, longer, np.repeat(factors.reshape(2, 8, 1, 8), 2, axis=2)
