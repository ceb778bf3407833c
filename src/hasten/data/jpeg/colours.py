"""Red, green and blue out of brightness and of colours half as large, by the dozen, whole or as means over two by two.

All is computed in 16 bits, so that a vector holds as much as can be. Colours are multiplied by numbers beyond 16 bits, of
which whole turns are taken off (1.402 of red is red and 0.402 of it): the results are those of `jdcolor.c` of libjpeg.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from numba import types
from numba.extending import intrinsic

from hasten.data.jpeg.vectors import BYTE, INT, LONG, SHORT, Value, between, load, picked, same, store, vector

STEP = 32
"""Columns of the colours that are done at once."""
_HALF = STEP // 2
_SHORTS = vector(SHORT, STEP)
_RED, _BLUE = 26345, -14942
"""0.402 and -0.228 of 65536: what is left of 1.402 and 1.772 when 1 and 2 are taken off (ITU-T T.871, section 7)."""
_GREEN_OF_BLUE, _GREEN_OF_RED = -22554, 18734
"""-0.34414 of 65536, and what is left of -0.71414 when -1 is taken off."""


def _short(number: int) -> Value:
    return same(number, STEP, SHORT)


def _weighed(_context: Any, _near: Any, _far: Any, _out: Any) -> Any:
    def coded(context: Any, b: Any, _signature: Any, given: Any) -> Any:
        near, far = (b.zext(load(b, at, vector(BYTE, STEP)), _SHORTS) for at in given[:2])
        store(b, b.add(b.mul(near, _short(3)), far), given[2])
        return context.get_dummy_value()

    return types.void(types.uintp, types.uintp, types.uintp), coded


def _enlarged(b: Any, at: Value) -> list[Value]:
    """Colours twice as wide, less 128: those at even places, and those at odd ones.

    Three parts are the nearer one's, as in `h2v2_fancy_upsample` of `jdsample.c`; rows are weighed so already.
    """
    left, here, right = (load(b, b.add(at, LONG(2 * place)), _SHORTS) for place in (-1, 0, 1))
    here = b.mul(here, _short(3))
    return [
        b.sub(b.lshr(b.add(b.add(here, beside), _short(half)), _short(4)), _short(128))
        for beside, half in ((left, 8), (right, 7))
    ]


def _part(b: Any, values: Value, factor: int) -> Value:
    """Values times `factor / 65536`, rounded: of twice of it the upper 16 bits, and a half of these rounded up."""
    wide = vector(INT, STEP)
    twice = b.mul(b.sext(b.shl(values, _short(1)), wide), same(factor, STEP))
    upper = b.trunc(b.ashr(twice, same(16, STEP)), _SHORTS)
    return b.ashr(b.add(upper, _short(1)), _short(1))


def _parts(b: Any, blues: Value, reds: Value) -> Value:
    """What green has of both, rounded once."""
    wide = vector(INT, STEP)
    total = b.add(
        b.mul(b.sext(blues, wide), same(_GREEN_OF_BLUE, STEP)), b.mul(b.sext(reds, wide), same(_GREEN_OF_RED, STEP))
    )
    return b.sub(b.trunc(b.ashr(b.add(total, same(1 << 15, STEP)), same(16, STEP)), _SHORTS), reds)


def _row(b: Any, light: Value, blue: Value, red: Value) -> list[tuple[Value, Value, Value]]:
    """Red, green and blue of twice `STEP` pixels: those at even places, then those at odd ones."""
    pairs = load(b, light, _SHORTS)
    lights = b.and_(pairs, _short(255)), b.lshr(pairs, _short(8))  # the first of a pair is the lower byte
    found = []
    for light_of, blues, reds in zip(lights, _enlarged(b, blue), _enlarged(b, red), strict=True):
        changes = (
            b.add(reds, _part(b, reds, _RED)),
            _parts(b, blues, reds),
            b.add(b.shl(blues, _short(1)), _part(b, blues, _BLUE)),
        )
        red_of, green_of, blue_of = (between(b, b.add(light_of, change), 0, 255) for change in changes)
        found.append((red_of, green_of, blue_of))
    return found


def _keep_colours(b: Any, colours: Sequence[Value], out: Value) -> None:
    """Write so many pixels of three bytes each, sixteen at a time."""
    for first in range(0, colours[0].type.count, _HALF):
        red, green, blue = (picked(b, colour, colour, range(first, first + _HALF)) for colour in colours)
        for part in range(3):
            places = [divmod(_HALF * part + byte, 3) for byte in range(_HALF)]
            two = picked(b, red, green, [pixel if colour == 0 else _HALF + pixel for pixel, colour in places])
            of = [_HALF + pixel if colour == 2 else byte for byte, (pixel, colour) in enumerate(places)]
            store(b, picked(b, two, blue, of), b.add(out, LONG(3 * first + _HALF * part)))


def _halved(_context: Any, _lights: Any, _stride: Any, _sums: Any, _apart: Any, _out: Any) -> Any:
    def coded(context: Any, b: Any, _signature: Any, given: Any) -> Any:
        lights, stride, sums, apart, out = given
        at = [b.add(sums, b.mul(apart, LONG(number))) for number in range(4)]
        pixels = [*_row(b, lights, at[0], at[2]), *_row(b, b.add(lights, stride), at[1], at[3])]
        colours = []
        for colour in range(3):
            total = _short(2)
            for pixel in pixels:
                total = b.add(total, pixel[colour])
            colours.append(b.trunc(b.lshr(total, _short(2)), vector(BYTE, STEP)))
        _keep_colours(b, colours, out)
        return context.get_dummy_value()

    return types.void(types.uintp, types.uintp, types.uintp, types.uintp, types.uintp), coded


def _whole(_context: Any, _lights: Any, _sums: Any, _apart: Any, _out: Any) -> Any:
    def coded(context: Any, b: Any, _signature: Any, given: Any) -> Any:
        lights, sums, apart, out = given
        evens, odds = _row(b, lights, sums, b.add(sums, b.mul(apart, LONG(2))))
        # An odd one is the upper byte beside an even one.
        both = [b.or_(even, b.shl(odd, _short(8))) for even, odd in zip(evens, odds, strict=True)]
        _keep_colours(b, [b.bitcast(one, vector(BYTE, 2 * STEP)) for one in both], out)
        return context.get_dummy_value()

    return types.void(types.uintp, types.uintp, types.uintp, types.uintp), coded


keep_weighed: Callable[[Any, Any, Any], None] = cast("Any", intrinsic(_weighed))
"""Write `STEP` sums of 16 bits: three times the byte at one address and once that at another."""
keep_halved: Callable[[Any, Any, Any, Any, Any], None] = cast("Any", intrinsic(_halved))
"""Write `STEP` pixels, each the mean over two by two: of brightness at an address, the bytes to its next row, and sums of
`keep_weighed` with the bytes between their rows: blue for the upper and the lower row, then red."""
keep_whole: Callable[[Any, Any, Any, Any], None] = cast("Any", intrinsic(_whole))
"""Write twice `STEP` pixels of a row: of brightness, and of the sums as above, from the address of blue for this row on."""
