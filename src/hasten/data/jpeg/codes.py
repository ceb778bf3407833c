"""Pixels of brightness and colours out of the codes of a file.

A block is a chain of codes: where one begins is known when the one before is read. So nothing stands in that chain but the
look at a table and the shift by what it says; the value of a code, its place in the block and the transform of a block that
is whole are computed beside it. There is no test of damage within the chain either: a damaged block writes to its own block
alone, reads no farther than `SLACK`, and is noticed at its end.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from hasten.data.jpeg.tables import BITS, BLOCK_ENDS, ENTRIES, FIRSTS, LIMITS, LONGER, OTHER_BYTES, SLOW, TWO_BLOCKS_BYTES
from hasten.data.jpeg.transform import keep_blocks
from hasten.data.jpeg.vectors import (
    bits_at,
    byte_at,
    eight_at,
    keep_byte,
    keep_eight,
    keep_short,
    number_at,
    short_at,
)

SLACK = 1024
"""Bytes behind the codes that may be read: a block of 64 codes takes less than 8 each."""
FINE, DAMAGED = 0, 1
_LOOK_BYTES = np.uintp(4 << BITS)
_LONGER_BYTES = np.uintp(4 * LONGER)
_FACTORS_BYTES = np.uintp(TWO_BLOCKS_BYTES)
_FULL = 56
"""Bits that are at hand once more were taken in: a code and its value have 27 at most."""
_NO_CODE, _NOWHERE = -1, 65
_MOST_BRIGHT = 2048
"""Of the first number of a block, eight times its mean: a picture has half of it."""
_ONE, _TWO = np.uintp(1), np.uintp(2)


@numba.njit(nogil=True)
def without_stuffing(data: Any, size: int, out: Any) -> Any:
    """Copy codes without the zeros that follow a byte of ones (T.81, F.1.2.3), and `SLACK` zeros behind them.

    Args:
        data: The address of the first byte.
        size: Bytes from there to the end of the file.
        out: The address to copy to: of `size + SLACK` bytes.

    Returns:
        Bytes copied; -1 where they do not end with the picture, as those of a file that was cut off, or one with restarts.
    """
    at, end, to = data, data + np.uintp(size), out
    high, low = np.uint64(0x8080808080808080), np.uint64(0x0101010101010101)
    while at < end:
        if at + np.uintp(8) <= end:
            eight = eight_at(at)
            if (~eight - low) & eight & high == 0:  # none of the eight is of ones alone
                keep_eight(to, eight)
                at, to = at + np.uintp(8), to + np.uintp(8)
                continue
        byte = byte_at(at)
        if byte == 0xFF:
            if at + _ONE >= end or byte_at(at + _ONE) != 0:
                break
            at += _ONE
        keep_byte(to, byte)
        at, to = at + _ONE, to + _ONE
    for number in range(0, SLACK, 8):
        keep_eight(to + np.uintp(number), np.uint64(0))
    has_end = at + _ONE < end and byte_at(at + _ONE) == 0xD9
    return np.int64(to - out) if has_end else np.int64(-1)


@numba.njit(nogil=True)
def _long_entry(longer: Any, bits: Any) -> Any:
    """The entry of a code of more than `BITS` bits; -1 where the next bits are no code."""
    first = np.int64(bits >> np.uint64(48))
    for length in range(BITS + 1, 17):
        if first < np.int64(number_at(longer + np.uintp(4 * (LIMITS + length)))):
            number = np.int64(np.int32(number_at(longer + np.uintp(4 * (FIRSTS + length))))) + (first >> (16 - length))
            return np.int64(number_at(longer + np.uintp(4 * (ENTRIES + number))))
    return np.int64(_NO_CODE)


@numba.njit(nogil=True, forceinline=True)
def _entry(look: Any, longer: Any, bits: Any) -> Any:
    """The entry of the code that the next bits begin with; -1 where they are none."""
    entry = np.int64(number_at(look + np.uintp((bits >> np.uint64(64 - BITS)) << np.uint64(2))))
    return _long_entry(longer, bits) if entry & SLOW else entry


@numba.njit(nogil=True, forceinline=True)
def _value(bits: Any, entry: Any) -> Any:
    """The value behind a code: where its first bit is 0, a negative one (T.81, F.2.2.1)."""
    behind = np.int64(bits << np.uint64((entry >> 16) & 31))
    size = entry >> 24
    below = ~(behind >> 63)
    # Shifted twice: a value of no bits is 0, and no processor shifts by 64.
    return np.int64((np.uint64(behind) >> np.uint64(1)) >> np.uint64(size ^ 63)) + (below << size) - below


@numba.njit(nogil=True, forceinline=True)
def _filled(bits: Any, count: Any, at: Any) -> tuple[Any, Any, Any]:
    """The bits at hand with as many more as there is room for, how many they are, and where the next ones lie."""
    return bits | bits_at(at) >> np.uint64(count), count | _FULL, at + np.uintp((63 - count) >> 3)


@numba.njit(nogil=True, forceinline=True)
def _keep_others(  # noqa: PLR0917  a kernel keeps all of it in registers, and is called by position
    look: Any, longer: Any, block: Any, places: Any, bits: Any, count: Any, at: Any
) -> tuple[Any, Any, Any, Any]:
    """Write all numbers of a block but the first.

    Returns:
        The bits at hand, how many they are, where the next ones lie, and the place that was reached: 64, `BLOCK_ENDS` or
        more, or another one where the block is damaged.
    """
    place = np.int64(1)
    while place < 64:
        bits, count, at = _filled(bits, count, at)
        entry = _entry(look, longer, bits)
        if entry < 0:
            return bits, count, at, np.int64(_NOWHERE)
        value = _value(bits, entry)
        bits <<= np.uint64(entry & 63)
        count -= entry & 63
        place += (entry >> 8) & 255
        keep_short(block + np.uintp(short_at(places + np.uintp(2 * (place - 1)))), value)
    return bits, count, at, place


@numba.njit(nogil=True)
def _most(factors: Any) -> Any:
    """The largest first number of a block, before it is multiplied: of larger ones each decoder makes something else."""
    return np.int64(_MOST_BRIGHT // max(short_at(factors), 1))


@numba.njit(nogil=True)
def keep_planes(  # noqa: PLR0917  as above
    codes: Any,
    size: int,
    look: Any,
    longer: Any,
    factors: Any,
    places: Any,
    blocks: Any,
    planes: Any,
    across: int,
    down: int,
) -> int:
    """Write the pixels of brightness and of both colours.

    Args:
        codes: The address of the codes, as `without_stuffing` left them.
        size: Their bytes.
        look: The address of four tables of `fill_tables`: DC and AC of brightness, then of the colours.
        longer: The address of what goes with each, of codes that are longer.
        factors: The address of what numbers are multiplied by, of brightness, then of the colours.
        places: The address of `PLACES`.
        blocks: The address, a multiple of 32, of 320 bytes that are zero: two blocks whose rows lie in turn, and a place for
            what belongs to neither. The blocks are zero again at the end.
        planes: The address of brightness, `[16 * down, 16 * across]`, and then of both colours, `[8 * down, 8 * across]`.
        across: Squares of 16 pixels from left to right.
        down: Those from top to bottom.

    Returns:
        `FINE`, or `DAMAGED` where a block is not what a block may be, or codes are missing or too many.
    """
    bits, count, at, end = np.uint64(0), np.int64(0), codes, codes + np.uintp(size)
    light, blue, red = np.int64(0), np.int64(0), np.int64(0)
    wide, narrow = np.uintp(16 * across), np.uintp(8 * across)
    most_light, most_colour = _most(factors), _most(factors + _FACTORS_BYTES)
    blues = planes + wide * np.uintp(16 * down)
    reds = blues + narrow * np.uintp(8 * down)
    for square in range(down * across):
        row, column = square // across, square % across
        for pair in range(3):
            of = np.uintp(pair == 2)
            most, stride = (most_colour, narrow) if of else (most_light, wide)
            look_dc, longer_dc = look + _TWO * of * _LOOK_BYTES, longer + _TWO * of * _LONGER_BYTES
            for number in range(2):
                bits, count, at = _filled(bits, count, at)
                entry = _entry(look_dc, longer_dc, bits)
                if entry < 0:
                    return DAMAGED
                change = _value(bits, entry)
                bits <<= np.uint64(entry & 63)
                count -= entry & 63
                if pair < 2:
                    light += change
                    first = light
                elif number == 0:
                    blue += change
                    first = blue
                else:
                    red += change
                    first = red
                block = blocks + np.uintp(OTHER_BYTES * number)
                keep_short(block, first)
                bits, count, at, place = _keep_others(
                    look_dc + _LOOK_BYTES, longer_dc + _LONGER_BYTES, block, places, bits, count, at
                )
                if 64 < place < BLOCK_ENDS or abs(first) > most or at - np.uintp(count >> 3) > end:
                    return DAMAGED
            if pair < 2:
                out = planes + np.uintp(16 * row + 8 * pair) * wide + np.uintp(16 * column)
                other = out + np.uintp(8)
            else:
                out = blues + np.uintp(8 * row) * narrow + np.uintp(8 * column)
                other = out + (reds - blues)
            keep_blocks(blocks, factors + of * _FACTORS_BYTES, out, other, stride)
    left = (np.int64(end) - np.int64(at)) * 8 + count
    return FINE if 0 <= left < 8 else DAMAGED
