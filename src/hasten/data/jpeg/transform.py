"""Pixels of a block of 8 by 8 out of its numbers: the inverse cosine transform, in vectors of eight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from numba import types
from numba.extending import intrinsic

from hasten.data.jpeg.vectors import INT, LONG, SHORT, Value, between, load, picked, same, store, vector

_ONES = 8192
"""1 in the fixed-point numbers of the inverse transform: 13 bits (`jidctint.c`)."""


_PLACES = 16
"""Of a vector: eight of one block, then eight of the other."""
_CENTRE = 128
"""What a pixel is that differs from none."""


def _transformed(b: Any, v: list[Value], shift: int, added: int = 0) -> list[Value]:
    """Inverse cosine transforms of eight numbers of 16 bits, one in each place of the vectors, to numbers of 32 bits.

    By Loeffler, Ligtenberg and Moschytz (1989), as `jidctint.c` of libjpeg has it, whose every rounding is kept; and where
    numbers of a damaged file leave 16 bits, as the vector instructions of libjpeg-turbo do it.

    Args:
        b: Builds the instructions.
        v: The numbers, `[8]` vectors.
        shift: By how many bits the results are made smaller.
        added: To the results.
    """
    wide = vector(INT, _PLACES)

    def by(value: Value, factor: float) -> Value:
        return b.mul(value, same(round(factor * _ONES), _PLACES))

    def rounded(value: Value) -> Value:
        return b.ashr(b.add(value, same((added << shift) + (1 << shift - 1), _PLACES)), same(shift, _PLACES))

    shorts = b.add(v[0], v[4]), b.sub(v[0], v[4]), b.add(v[7], v[3]), b.add(v[5], v[1])
    total, rest, odds, evens = (b.sext(short, wide) for short in shorts)
    v = [b.sext(one, wide) for one in v]
    total, rest = (b.mul(one, same(_ONES, _PLACES)) for one in (total, rest))
    turned = by(b.add(v[2], v[6]), 0.541196100)
    low, high = b.sub(turned, by(v[6], 1.847759065)), b.add(turned, by(v[2], 0.765366865))
    even = [b.add(total, high), b.add(rest, low), b.sub(rest, low), b.sub(total, high)]
    shared = by(b.add(odds, evens), 1.175875602)
    outer, inner = by(b.add(v[7], v[1]), -0.899976223), by(b.add(v[5], v[3]), -2.562915447)
    odds, evens = b.add(by(odds, -1.961570560), shared), b.add(by(evens, -0.390180644), shared)
    odd = [
        b.add(by(v[1], 1.501321110), b.add(outer, evens)),
        b.add(by(v[3], 3.072711026), b.add(inner, odds)),
        b.add(by(v[5], 2.053119869), b.add(inner, evens)),
        b.add(by(v[7], 0.298631336), b.add(outer, odds)),
    ]
    above = [rounded(b.add(one, other)) for one, other in zip(even, odd, strict=True)]
    below = [rounded(b.sub(one, other)) for one, other in zip(even, odd, strict=True)]
    return above + below[::-1]


_LOW = [0, 16, 1, 17, 2, 18, 3, 19, 8, 24, 9, 25, 10, 26, 11, 27]
_HIGH = [4 + place for place in _LOW]


def _transposed(b: Any, v: list[Value]) -> list[Value]:
    """Rows of both blocks as columns: three times, each is laid between the places of the one that lies four below it."""
    for _ in range(3):
        v = [picked(b, v[row // 2], v[row // 2 + 4], _HIGH if row % 2 else _LOW) for row in range(8)]
    return v


def _blocks(_context: Any, _numbers: Any, _by: Any, _out: Any, _other: Any, _stride: Any) -> Any:
    def coded(context: Any, b: Any, _signature: Any, given: Any) -> Any:
        numbers, factors, *outs, stride = given
        v = []
        for row in range(8):
            at, factor = (b.add(one, LONG(2 * _PLACES * row)) for one in (numbers, factors))
            v.append(b.mul(load(b, at, vector(SHORT, _PLACES), 32), load(b, factor, vector(SHORT, _PLACES), 2)))
            store(b, same(0, _PLACES, SHORT), at, 32)
        rows = [between(b, one, -(1 << 15), (1 << 15) - 1) for one in _transformed(b, v, 11)]
        columns = _transposed(b, [b.trunc(one, vector(SHORT, _PLACES)) for one in rows])
        columns = [between(b, one, 0, 255) for one in _transformed(b, columns, 18, _CENTRE)]
        left, right = (_joined(b, half) for half in (columns[:4], columns[4:]))
        for half, places in enumerate((_LOW, _HIGH)):
            rows_of_both = b.bitcast(picked(b, left, right, places), vector(LONG, 8))
            for number, out in enumerate(outs):
                for row in range(4):
                    place = b.add(out, b.mul(stride, LONG(4 * half + row)))
                    store(b, b.extract_element(rows_of_both, INT(4 * number + row)), place)
        return context.get_dummy_value()

    return types.void(types.uintp, types.uintp, types.uintp, types.uintp, types.uintp), coded


def _joined(b: Any, columns: list[Value]) -> Value:
    """Four columns of bytes as one of four bytes each, the first lowest."""
    found = columns[0]
    for number, column in enumerate(columns[1:], 1):
        found = b.or_(found, b.shl(column, same(8 * number, _PLACES)))
    return found


keep_blocks: Callable[[Any, Any, Any, Any, Any], None] = cast("Any", intrinsic(_blocks))
"""Write the 8 by 8 pixels of two blocks.

Of the address of their numbers (64 of 16 bits each, eight of one and eight of the other in turn, set to zero here), that of
what these are multiplied by, laid out alike, those of the first pixel of either block, and the bytes from a row of pixels to
the next.
"""
