"""Red, green and blue out of brightness and of colours half as large, sixteen at once, whole or as means over two by two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from numba import types
from numba.extending import intrinsic

from upshift.data.jpeg.vectors import BYTE, INT, LONG, SHORT, Value, between, load, picked, same, store, vector


def _weighed(_context: Any, _near: Any, _far: Any, _out: Any) -> Any:
    def coded(context: Any, b: Any, _signature: Any, given: Any) -> Any:
        near, far = (b.zext(load(b, at, vector(BYTE, 16)), vector(SHORT, 16)) for at in given[:2])
        store(b, b.add(b.mul(near, same(3, 16, SHORT)), far), given[2])
        return context.get_dummy_value()

    return types.void(types.uintp, types.uintp, types.uintp), coded


def _enlarged(b: Any, at: Value) -> list[Value]:
    """Colours twice as wide, less 128: those at even places, and those at odd ones.

    Three parts are the nearer one's, as in `h2v2_fancy_upsample` of `jdsample.c`; rows are weighed so already.
    """
    left, here, right = (
        b.zext(load(b, b.add(at, LONG(2 * place)), vector(SHORT, 16)), vector(INT, 16)) for place in (-1, 0, 1)
    )
    here = b.mul(here, same(3, 16))
    return [
        b.sub(b.lshr(b.add(b.add(here, beside), same(half, 16)), same(4, 16)), same(128, 16))
        for beside, half in ((left, 8), (right, 7))
    ]


def _row(b: Any, light: Value, blue: Value, red: Value) -> list[tuple[Value, Value, Value]]:
    """Red, green and blue of 32 pixels: those at even places, then those at odd ones (`jdcolor.c`)."""
    pixels = load(b, light, vector(BYTE, 32))
    found = []
    for first, blues, reds in zip((0, 1), _enlarged(b, blue), _enlarged(b, red), strict=True):
        lights = b.zext(picked(b, pixels, pixels, range(first, 32, 2)), vector(INT, 16))

        def lit(*parts: tuple[Value, int], lights: Value = lights) -> Value:
            total = same(1 << 15, 16)
            for values, factor in parts:
                total = b.add(total, b.mul(values, same(factor, 16)))
            return between(b, b.add(lights, b.ashr(total, same(16, 16))), 0, 255)

        found.append((lit((reds, 91881)), lit((blues, -22554), (reds, -46802)), lit((blues, 116130))))
    return found


def _keep_colours(b: Any, colours: Sequence[Value], out: Value) -> None:
    """Write 16 pixels of three bytes each."""
    for part in range(3):
        places = [divmod(16 * part + byte, 3) for byte in range(16)]
        two = picked(b, colours[0], colours[1], [pixel if colour == 0 else 16 + pixel for pixel, colour in places])
        of = [16 + pixel if colour == 2 else byte for byte, (pixel, colour) in enumerate(places)]
        store(b, picked(b, two, colours[2], of), b.add(out, LONG(16 * part)))


def _halved(_context: Any, _lights: Any, _stride: Any, _sums: Any, _apart: Any, _out: Any) -> Any:
    def coded(context: Any, b: Any, _signature: Any, given: Any) -> Any:
        lights, stride, sums, apart, out = given
        at = [b.add(sums, b.mul(apart, LONG(number))) for number in range(4)]
        pixels = [*_row(b, lights, at[0], at[2]), *_row(b, b.add(lights, stride), at[1], at[3])]
        colours = []
        for colour in range(3):
            total = same(2, 16)
            for pixel in pixels:
                total = b.add(total, pixel[colour])
            colours.append(b.trunc(b.lshr(total, same(2, 16)), vector(BYTE, 16)))
        _keep_colours(b, colours, out)
        return context.get_dummy_value()

    return types.void(types.uintp, types.uintp, types.uintp, types.uintp, types.uintp), coded


def _whole(_context: Any, _lights: Any, _sums: Any, _apart: Any, _out: Any) -> Any:
    def coded(context: Any, b: Any, _signature: Any, given: Any) -> Any:
        lights, sums, apart, out = given
        evens, odds = _row(b, lights, sums, b.add(sums, b.mul(apart, LONG(2))))
        bytes_of = [[b.trunc(colour, vector(BYTE, 16)) for colour in pixels] for pixels in (evens, odds)]
        for half in range(2):
            places = [8 * half + number // 2 + 16 * (number % 2) for number in range(16)]
            colours = [picked(b, even, odd, places) for even, odd in zip(*bytes_of, strict=True)]
            _keep_colours(b, colours, b.add(out, LONG(48 * half)))
        return context.get_dummy_value()

    return types.void(types.uintp, types.uintp, types.uintp, types.uintp), coded


keep_weighed: Callable[[Any, Any, Any], None] = cast("Any", intrinsic(_weighed))
"""Write 16 sums of 16 bits: three times the byte at one address and once that at another."""
keep_halved: Callable[[Any, Any, Any, Any, Any], None] = cast("Any", intrinsic(_halved))
"""Write 16 pixels, each the mean over two by two: of brightness at an address, the bytes to its next row, and sums of
`keep_weighed` with the bytes between their rows: blue for the upper and the lower row, then red."""
keep_whole: Callable[[Any, Any, Any, Any], None] = cast("Any", intrinsic(_whole))
"""Write 32 pixels of a row: of brightness, and of the sums as above, whose address is that of blue for this row."""
