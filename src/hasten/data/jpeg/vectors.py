"""What the kernels do that Numba has no words for, in LLVM's: memory at an address, and vectors to be built of.

LLVM makes of these what the processor at hand has: AVX-512, AVX2, SSE or NEON. Addresses are `uintp`; whoever calls knows
that what lies there is its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

Value: TypeAlias = Any
"""A value of LLVM's."""
BYTE, SHORT, INT, LONG = (ir.IntType(bits) for bits in (8, 16, 32, 64))


def vector(kind: Any, count: int) -> Any:
    """The type of so many numbers."""
    return ir.VectorType(kind, count)


def same(number: int, count: int, kind: Any = INT) -> Value:
    """One number, so many times."""
    return ir.Constant(vector(kind, count), [number] * count)


def load(b: Any, at: Value, kind: Any, align: int = 1) -> Value:
    """What lies at an address that is a multiple of `align`."""
    found = b.load(b.inttoptr(at, kind.as_pointer()))
    found.align = align
    return found


def store(b: Any, value: Value, at: Value, align: int = 1) -> None:
    """Write to an address that is a multiple of `align`."""
    b.store(value, b.inttoptr(at, value.type.as_pointer())).align = align


def picked(b: Any, one: Value, other: Value, places: Sequence[int]) -> Value:
    """Numbers of two vectors by their place, those of the second after those of the first."""
    return b.shuffle_vector(one, other, ir.Constant(vector(INT, len(places)), list(places)))


def between(b: Any, values: Value, low: int, high: int) -> Value:
    """The same, none below `low` or above `high`."""
    least, most = (same(number, values.type.count, values.type.element) for number in (low, high))
    values = b.select(b.icmp_signed("<", values, least), least, values)
    return b.select(b.icmp_signed(">", values, most), most, values)


def _number(_context: Any, _at: Any) -> Any:
    def coded(_context: Any, b: Any, _signature: Any, given: Any) -> Any:
        return b.zext(load(b, given[0], INT), LONG)

    return types.int64(types.uintp), coded


def _short(_context: Any, _at: Any) -> Any:
    def coded(_context: Any, b: Any, _signature: Any, given: Any) -> Any:
        return b.sext(load(b, given[0], SHORT), LONG)

    return types.int64(types.uintp), coded


def _byte(_context: Any, _at: Any) -> Any:
    def coded(_context: Any, b: Any, _signature: Any, given: Any) -> Any:
        return b.zext(load(b, given[0], BYTE), LONG)

    return types.int64(types.uintp), coded


def _bits(_context: Any, _at: Any) -> Any:
    def coded(_context: Any, b: Any, _signature: Any, given: Any) -> Any:
        turn = b.module.declare_intrinsic("llvm.bswap", [LONG])
        return b.call(turn, [load(b, given[0], LONG)])

    return types.uint64(types.uintp), coded


def _keep_short(_context: Any, _at: Any, _value: Any) -> Any:
    def coded(context: Any, b: Any, _signature: Any, given: Any) -> Any:
        store(b, b.trunc(given[1], SHORT), given[0], 2)
        return context.get_dummy_value()

    return types.void(types.uintp, types.int64), coded


def _keep_byte(_context: Any, _at: Any, _value: Any) -> Any:
    def coded(context: Any, b: Any, _signature: Any, given: Any) -> Any:
        store(b, b.trunc(given[1], BYTE), given[0])
        return context.get_dummy_value()

    return types.void(types.uintp, types.int64), coded


def _keep_eight(_context: Any, _at: Any, _value: Any) -> Any:
    def coded(context: Any, b: Any, _signature: Any, given: Any) -> Any:
        store(b, given[1], given[0])
        return context.get_dummy_value()

    return types.void(types.uintp, types.uint64), coded


def _eight(_context: Any, _at: Any) -> Any:
    def coded(_context: Any, b: Any, _signature: Any, given: Any) -> Any:
        return load(b, given[0], LONG)

    return types.uint64(types.uintp), coded


number_at: Callable[[Any], int] = cast("Any", intrinsic(_number))
"""The 32 bits at an address, without a sign."""
short_at: Callable[[Any], int] = cast("Any", intrinsic(_short))
"""The 16 bits at an address."""
byte_at: Callable[[Any], int] = cast("Any", intrinsic(_byte))
"""The byte at an address."""
bits_at: Callable[[Any], Any] = cast("Any", intrinsic(_bits))
"""The 64 bits at an address, the first byte's the highest."""
eight_at: Callable[[Any], Any] = cast("Any", intrinsic(_eight))
"""The 8 bytes at an address, in the processor's own order."""
keep_byte: Callable[[Any, int], None] = cast("Any", intrinsic(_keep_byte))
"""Write the lower 8 bits of a number to an address."""
keep_short: Callable[[Any, int], None] = cast("Any", intrinsic(_keep_short))
"""Write the lower 16 bits of a number to an address."""
keep_eight: Callable[[Any, Any], None] = cast("Any", intrinsic(_keep_eight))
"""Write 8 bytes to an address, as `eight_at` gave them."""
