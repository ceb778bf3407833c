"""Pixels of a block of 8 by 8 out of its numbers: the inverse cosine transform, in vectors of eight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from numba import types
from numba.extending import intrinsic

from upshift.data.jpeg.vectors import INT, LONG, SHORT, Value, between, load, picked, same, store, vector

_ONES = 8192
"""1 in the fixed-point numbers of the inverse transform: 13 bits (`jidctint.c`)."""


def _transformed(b: Any, v: list[Value], shift: int) -> list[Value]:
    """Eight inverse cosine transforms of eight numbers of 16 bits, one in each place of the vectors.

    By Loeffler, Ligtenberg and Moschytz (1989), as `jidctint.c` of libjpeg has it, whose every rounding is kept; and where
    numbers of a damaged file leave 16 bits, as the vector instructions of libjpeg-turbo do it.
    """

    def by(value: Value, factor: float) -> Value:
        return b.mul(value, same(round(factor * _ONES), 8))

    def rounded(value: Value) -> Value:
        return b.ashr(b.add(value, same(1 << shift - 1, 8)), same(shift, 8))

    total, rest, odds, evens = (
        b.sext(short, vector(INT, 8))
        for short in (b.add(v[0], v[4]), b.sub(v[0], v[4]), b.add(v[7], v[3]), b.add(v[5], v[1]))
    )
    v = [b.sext(one, vector(INT, 8)) for one in v]
    total, rest = (b.mul(one, same(_ONES, 8)) for one in (total, rest))
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
    return [b.trunc(between(b, one, -(1 << 15), (1 << 15) - 1), vector(SHORT, 8)) for one in above + below[::-1]]


_LOW, _HIGH = [0, 8, 1, 9, 2, 10, 3, 11], [4, 12, 5, 13, 6, 14, 7, 15]


def _transposed(b: Any, v: list[Value]) -> list[Value]:
    """Rows as columns: three times, each row is laid between the places of the one that lies four below it."""
    for _ in range(3):
        v = [picked(b, v[row // 2], v[row // 2 + 4], _HIGH if row % 2 else _LOW) for row in range(8)]
    return v


def _block(_context: Any, _numbers: Any, _by: Any, _out: Any, _stride: Any) -> Any:
    def coded(context: Any, b: Any, _signature: Any, given: Any) -> Any:
        numbers, factors, out, stride = given
        v = []
        for row in range(8):
            at = b.add(numbers, LONG(16 * row))
            factor = load(b, b.add(factors, LONG(16 * row)), vector(SHORT, 8), 2)
            v.append(b.mul(load(b, at, vector(SHORT, 8), 16), factor))
            store(b, same(0, 8, SHORT), at, 16)
        v = _transformed(b, _transposed(b, _transformed(b, v, 11)), 18)
        v = [between(b, b.add(b.sext(column, vector(INT, 8)), same(128, 8)), 0, 255) for column in v]
        left, right = (_joined(b, half) for half in (v[:4], v[4:]))
        for half, places in enumerate((_LOW, _HIGH)):
            rows = b.bitcast(picked(b, left, right, places), vector(LONG, 4))
            for row in range(4):
                place = b.add(out, b.mul(stride, LONG(4 * half + row)))
                store(b, b.extract_element(rows, INT(row)), place)
        return context.get_dummy_value()

    return types.void(types.uintp, types.uintp, types.uintp, types.uintp), coded


def _joined(b: Any, columns: list[Value]) -> Value:
    """Four columns of bytes as one of four bytes each, the first lowest."""
    found = columns[0]
    for number, column in enumerate(columns[1:], 1):
        found = b.or_(found, b.shl(column, same(8 * number, 8)))
    return found


keep_block: Callable[[Any, Any, Any, Any], None] = cast("Any", intrinsic(_block))
"""Write the 8 by 8 pixels of a block: of its numbers (64 of 16 bits, set to zero here), what they are multiplied by (64 of
16 bits), the address of the first pixel, and the bytes from a row of pixels to the next."""
