"""Rows copied as fast as memory gives them: a core is asked for the next rows while it copies one.

Where rows are picked from all over a table, no prefetcher of a processor can know which comes next, and a core waits for
the first bytes of each. Here every block of a row is copied beside a request for the block at its place a few rows on.

Several threads may copy the same rows: each takes a few that follow one another, whenever it is about to be through, and
marks them once they are there. So rows come in order, and a thread that is held up leaves the others no more than it has
taken. None waits for another one while there is anything left to copy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from llvmlite.binding import get_host_cpu_name
from numba import types
from numba.extending import intrinsic

TAKEN, DONE = 0, 8
"""Places in the state of a copy: rows taken until now, and from where on parts are marked that are there."""
THERE, NOT_YET, OUTSIDE = 1, 0, -1
"""What becomes of a part: it is there, it is not yet, or some row of it is none of the table."""
_LINE, _BLOCK = 64, 256
_BYTES_AHEAD = 8192
"""How far ahead memory is asked for, in bytes of rows."""
_PAST_THE_CACHES, _SECOND_CACHE = 0, 2
_LOOKS = 20_000
"""How often a thread looks for a part that another one copies before it lets others run: less than a millisecond."""
_WHERE = _PAST_THE_CACHES if get_host_cpu_name().startswith("znver") else _SECOND_CACHE
"""Where memory is asked to come. Into the second cache, a core can wait for more lines than into the first. AMD's processors
take it there with either; but lines of which it is said that they are read once do not drive out of the third cache what
is being written. Elsewhere such lines come to the first cache alone.
"""
_POINTER, _WORD = ir.IntType(8).as_pointer(), ir.IntType(64)


def _prefetching(_context: Any, _at: Any) -> Any:
    def coded(context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        kind = ir.IntType(32)
        function = ir.FunctionType(ir.VoidType(), [_POINTER, kind, kind, kind])
        call = builder.module.declare_intrinsic("llvm.prefetch", [_POINTER], function)
        builder.call(call, [builder.inttoptr(given[0], _POINTER), kind(0), kind(_WHERE), kind(1)])  # to read; data
        return context.get_dummy_value()

    return types.void(types.uintp), coded


def _moving(_context: Any, _to: Any, _at: Any, _size: Any) -> Any:
    def coded(context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        call = builder.module.declare_intrinsic("llvm.memcpy", [_POINTER, _POINTER, _WORD])
        to, at = (builder.inttoptr(one, _POINTER) for one in given[:2])
        builder.call(call, [to, at, given[2], ir.IntType(1)(0)])
        return context.get_dummy_value()

    return types.void(types.uintp, types.uintp, types.intp), coded


def _adding(_context: Any, _at: Any, _amount: Any) -> Any:
    def coded(_context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        at = builder.inttoptr(given[0], _WORD.as_pointer())
        return builder.atomic_rmw("add", at, given[1], "seq_cst")

    return types.intp(types.uintp, types.intp), coded


def _telling(_context: Any, _at: Any, _value: Any) -> Any:
    def coded(context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        builder.store_atomic(given[1], builder.inttoptr(given[0], _WORD.as_pointer()), "release", 8)
        return context.get_dummy_value()

    return types.void(types.uintp, types.intp), coded


def _hearing(_context: Any, _at: Any) -> Any:
    def coded(_context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        return builder.load_atomic(builder.inttoptr(given[0], _WORD.as_pointer()), "acquire", 8)

    return types.intp(types.uintp), coded


_prefetch: Callable[[Any], None] = cast("Any", intrinsic(_prefetching))
"""Ask for the line of memory at an address, which nobody waits for, and which need not be there."""
_move: Callable[[Any, Any, int], None] = cast("Any", intrinsic(_moving))
"""Copy bytes to an address from another one; of a fixed number, in vector instructions and without a call."""
_add: Callable[[Any, int], int] = cast("Any", intrinsic(_adding))
"""Add to a number at an address at one stroke, and give what it was."""
_tell: Callable[[Any, int], None] = cast("Any", intrinsic(_telling))
"""Write a number to an address: who hears it sees all that was written before. Nobody waits until that is out."""
_hear: Callable[[Any], int] = cast("Any", intrinsic(_hearing))
"""The number at an address, and with it what its writer wrote before."""

_TABLE = types.Array(types.uint8, 2, "C", readonly=True)
_AT = types.Array(types.int64, 1, "C", readonly=True)
_ROWS, _STATE = types.uint8[:, ::1], types.int64[::1]


_KIND = types.int64(_TABLE, _AT, _ROWS, _STATE, types.int64, types.int64, types.int64)


@numba.njit(nogil=True)
def _copy_some(  # noqa: PLR0917  as below
    table: npt.NDArray[np.uint8],
    at: npt.NDArray[np.int64],
    out: npt.NDArray[np.uint8],
    start: int,
    end: int,
    following: int,
) -> int:
    """Copy the rows from `start` to `end`, and ask for as many from `following` on; `THERE`, or one is `OUTSIDE`."""
    width, count, found = table.shape[1], len(at), THERE
    whole = width // _BLOCK * _BLOCK
    source, target = table.ctypes.data, out.ctypes.data
    for i in range(start, end):
        asked = source + at[min(following + i - start, count - 1)] * width
        if not 0 <= at[i] < len(table):
            found = OUTSIDE
            continue
        row, place = source + at[i] * width, target + i * width
        for byte in range(0, whole, _BLOCK):
            for line in range(0, _BLOCK, _LINE):
                _prefetch(np.uintp(asked + byte + line))
            _move(np.uintp(place + byte), np.uintp(row + byte), _BLOCK)
        if whole < width:
            for line in range(whole, width, _LINE):
                _prefetch(np.uintp(asked + line))
            _move(np.uintp(place + whole), np.uintp(row + whole), width - whole)
    return found


@numba.njit(nogil=True)
def _take(state: npt.NDArray[np.int64], step: int, until: int, count: int) -> int:
    """Where the next part begins that no thread has taken; `count` where there is none before `until`."""
    return count if state[TAKEN] >= until else min(_add(np.uintp(state.ctypes.data + 8 * TAKEN), step), count)


@numba.njit([_KIND], cache=True, nogil=True)
def copy_rows(  # noqa: PLR0917  a kernel is called by position
    table: npt.NDArray[np.uint8],
    at: npt.NDArray[np.int64],
    out: npt.NDArray[np.uint8],
    state: npt.NDArray[np.int64],
    step: int,
    first: int,
    end: int,
) -> int:
    """Copy those rows before `end` that no thread has taken, and more while others copy some from `first` on.

    A thread takes its next part before it is through with one, so that it asks for its rows in time.

    Args:
        table: `[rows, bytes of a row]`.
        at: Which rows, `[picked]`.
        out: Where to, `[picked, bytes of a row]`.
        state: Of this copy, of zeros at its beginning, `[DONE + ceil(picked / step)]`.
        step: Rows of a part, which a thread takes at once.
        first: The first row that must be there, of those picked.
        end: The first one after these; `first` where none has to be there, and all are to be copied.

    Returns:
        `THERE` when all rows from `first` to `end` are, `NOT_YET` while another thread copies some, or `OUTSIDE`.
    """
    count, ahead, done = len(at), max(_BYTES_AHEAD // table.shape[1], 1), state.ctypes.data + 8 * DONE
    until, part, last = (end, first // step, -(-end // step)) if first < end else (count, 0, 0)
    looks, answer = 0, THERE
    start = _take(state, step, until, count)
    while True:
        while start < count:
            stop = min(start + step, count)
            turn = max(stop - ahead, start)
            found = _copy_some(table, at, out, start, turn, start + ahead)
            following = _take(state, step, until, count)
            found = min(found, _copy_some(table, at, out, turn, stop, following))
            _tell(np.uintp(done + 8 * (start // step)), found)
            start = following
        while part < last:
            found = _hear(np.uintp(done + 8 * part))
            if found == NOT_YET:
                break
            answer = min(answer, found)
            part += 1
        if part == last:
            return answer
        start = _take(state, step, count, count)
        looks += start == count
        if looks > _LOOKS:
            return NOT_YET


@numba.njit([types.int64(_AT, _AT, types.int64[::1])], cache=True, nogil=True)
def measure_ranges(offsets: npt.NDArray[np.int64], places: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> int:
    """Find where ranges of bytes end that are laid one after another.

    Args:
        offsets: Where each range begins, and so where the one before it ends, `[ranges + 1]`.
        places: Which ranges, `[picked]`.
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
        ends[i + 1] = total
    return total


@numba.njit([types.void(types.uintp, _AT, _AT, _AT, types.uint8[::1])], cache=True, nogil=True)
def copy_ranges(
    base: int,
    offsets: npt.NDArray[np.int64],
    places: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    out: npt.NDArray[np.uint8],
) -> None:
    """Copy ranges of bytes one after another.

    Args:
        base: The address that offsets are counted from.
        offsets: As `measure_ranges` has it.
        places: The same.
        ends: As it left them.
        out: Where to, `[ends[-1]]`.
    """
    asked, count, target = 0, len(places), out.ctypes.data
    for i in range(count):
        while asked < count and ends[asked] - ends[i] < _BYTES_AHEAD:
            first = base + np.uintp(offsets[places[asked]])
            for line in range(0, ends[asked + 1] - ends[asked], _LINE):
                _prefetch(first + np.uintp(line))
            asked += 1
        _move(np.uintp(target + ends[i]), base + np.uintp(offsets[places[i]]), ends[i + 1] - ends[i])
