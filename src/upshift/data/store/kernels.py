"""Rows copied as fast as memory gives them: a core is asked for the next rows while it copies one.

Where rows are picked from all over a table, no prefetcher of a processor can know which comes next, and a core waits for
the first bytes of each. Here every line of a row is copied beside a request for the line at its place a few rows on. Rows
are of any length: a table's, a column's texts, its lists.

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
THERE, NOT_YET = 1, 0
"""What becomes of a part: it is there, or not yet."""
_LINE = 64
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

_READ = types.Array(types.int64, 1, "C", readonly=True)
_WRITTEN = types.int64[::1]


@numba.njit(nogil=True)
def _copy_some(  # noqa: PLR0917  as below
    base: np.uintp,
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    target: np.uintp,
    begin: int,
    stop: int,
    following: int,
) -> None:
    """Copy the rows from `begin` to `stop`, each line beside a request for one of the row as far on from `following`."""
    last = len(starts) - 1
    for i in range(begin, stop):
        asked = min(following + i - begin, last)
        size, to_ask = ends[i + 1] - ends[i], ends[asked + 1] - ends[asked]
        at, to, ask = base + np.uintp(starts[i]), target + np.uintp(ends[i]), base + np.uintp(starts[asked])
        whole = size // _LINE * _LINE
        for byte in range(0, whole, _LINE):
            _prefetch(ask + np.uintp(byte))
            _move(to + np.uintp(byte), at + np.uintp(byte), _LINE)
        for byte in range(whole, to_ask, _LINE):
            _prefetch(ask + np.uintp(byte))
        if size >= _LINE:  # some bytes twice, in place of a call
            _move(to + np.uintp(size - _LINE), at + np.uintp(size - _LINE), _LINE)
        else:
            _move(to, at, size)


@numba.njit(nogil=True)
def _take(state: npt.NDArray[np.int64], step: int, until: int, count: int) -> int:
    """Where the next part begins that no thread has taken; `count` where there is none before `until`."""
    return count if state[TAKEN] >= until else min(_add(np.uintp(state.ctypes.data + 8 * TAKEN), step), count)


@numba.njit(
    [types.int64(types.uintp, _READ, _READ, types.uint8[::1], _WRITTEN, types.int64, types.int64, types.int64)],
    cache=True,
    nogil=True,
)
def copy_rows(  # noqa: PLR0917  a kernel is called by position
    base: np.uintp,
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    out: npt.NDArray[np.uint8],
    state: npt.NDArray[np.int64],
    step: int,
    first: int,
    end: int,
) -> int:
    """Copy those rows before `end` that no thread has taken, and more while others copy some from `first` on.

    A thread takes its next part before it is through with one, so that it asks for its rows in time.

    Args:
        base: The address that rows are counted from.
        starts: Where each row begins, in bytes from there, `[picked]`.
        ends: 0, and where each ends in `out`, where they lie one after another, `[picked + 1]`.
        out: Where to, `[ends[-1]]`.
        state: Of this copy, of zeros at its beginning, `[DONE + ceil(picked / step)]`.
        step: Rows of a part, which a thread takes at once.
        first: The first row that must be there, of those picked.
        end: The first one after these; `first` where none has to be there, and all are to be copied.

    Returns:
        `THERE` when all rows from `first` to `end` are, or `NOT_YET` while another thread copies some.
    """
    count, done, target = len(starts), state.ctypes.data + 8 * DONE, np.uintp(out.ctypes.data)
    ahead = max(_BYTES_AHEAD * count // max(ends[count], 1), 1)
    until, part, last = (end, first // step, -(-end // step)) if first < end else (count, 0, 0)
    looks = 0
    start = _take(state, step, until, count)
    while True:
        while start < count:
            stop = min(start + step, count)
            turn = max(stop - ahead, start)
            _copy_some(base, starts, ends, target, start, turn, start + ahead)
            following = _take(state, step, until, count)
            _copy_some(base, starts, ends, target, turn, stop, following)
            _tell(np.uintp(done + 8 * (start // step)), THERE)
            start = following
        while part < last and _hear(np.uintp(done + 8 * part)) == THERE:
            part += 1
        if part == last:
            return THERE
        start = _take(state, step, count, count)
        looks += start == count
        if looks > _LOOKS:
            return NOT_YET


@numba.njit([types.boolean(types.int64, types.int64, _READ, _WRITTEN, _WRITTEN)], cache=True, nogil=True)
def measure_rows(
    count: int, width: int, places: npt.NDArray[np.int64], starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> bool:
    """Find where rows of a table begin, and where each ends when they are laid one after another.

    Args:
        count: Rows of the table.
        width: Bytes of each.
        places: Which rows, `[picked]`.
        starts: Gets where each of them begins, `[picked]`.
        ends: Gets 0 and then their ends, `[picked + 1]`.

    Returns:
        Whether all are rows of the table.
    """
    ends[0] = 0
    for i in range(len(places)):
        if not 0 <= places[i] < count:
            return False
        starts[i] = places[i] * width
        ends[i + 1] = ends[i] + width
    return True


@numba.njit([types.int64(_READ, _READ, _WRITTEN, _WRITTEN)], cache=True, nogil=True)
def measure_ranges(
    offsets: npt.NDArray[np.int64],
    places: npt.NDArray[np.int64],
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
) -> int:
    """Find where ranges of bytes begin, and where each ends when they are laid one after another.

    Args:
        offsets: Where each range begins, and so where the one before it ends, `[ranges + 1]`.
        places: Which ranges, `[picked]`.
        starts: Gets where each of them begins, `[picked]`.
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
        starts[i] = offsets[place]
        ends[i + 1] = total
    return total
