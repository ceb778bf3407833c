"""Rows copied as fast as memory gives them: a core is asked for the next rows while it copies one.

Where rows are picked from all over a table, no prefetcher of a processor can know which comes next, and a core waits for
the first bytes of each. Here every line of a row is copied beside a request for the line at its place a few rows on. Rows
are of any length: a table's, a column's texts, its lists.

Several threads may copy the same rows: each takes a few that follow one another, whenever it is about to be through, and
marks them once they are there. So rows come in order, and a thread that is held up leaves the others no more than it has
taken. None waits for another one while there is anything left to copy.

Helpers find what to copy on a board. They look at it without Python, which the thread that trains would have to let go of
for each copy otherwise, and wait for until it has it again.
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

from hasten.data.store.measure import measure_ranges, measure_rows

__all__ = [
    "DONE", "ENDED", "HELPER", "JOBS", "NOT_YET", "SLEEPY", "SLOT", "TAKEN", "THERE",
    "attend", "board_words", "copy_rows", "end", "measure_ranges", "measure_rows", "put_up", "take_down",
]  # fmt: skip
TAKEN, DONE = 0, 8
"""Places in the state of a copy: rows taken until now, and from where on parts are marked that are there."""
THERE, NOT_YET = 1, 0
"""What becomes of a part: it is there, or not yet."""
_LINE = 64
_BYTES_AHEAD = 8192
"""How far ahead memory is asked for, in bytes of rows."""
_NONE_LEFT = 2**62
"""Rows taken of a copy that nobody should go on with."""
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


def _swapping(_context: Any, _at: Any, _value: Any) -> Any:
    def coded(_context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        at = builder.inttoptr(given[0], _WORD.as_pointer())
        return builder.atomic_rmw("xchg", at, given[1], "seq_cst")

    return types.intp(types.uintp, types.intp), coded


def _reading(_context: Any, _at: Any) -> Any:
    def coded(_context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        return builder.load(builder.inttoptr(given[0], _WORD.as_pointer()))

    return types.intp(types.uintp), coded


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
_swap: Callable[[Any, int], int] = cast("Any", intrinsic(_swapping))
"""Write a number to an address at one stroke, and give what it was."""
_read: Callable[[Any], int] = cast("Any", intrinsic(_reading))
"""The number at an address, which nobody writes to."""
_tell: Callable[[Any, int], None] = cast("Any", intrinsic(_telling))
"""Write a number to an address: who hears it sees all that was written before. Nobody waits until that is out."""
_hear: Callable[[Any], int] = cast("Any", intrinsic(_hearing))
"""The number at an address, and with it what its writer wrote before."""

_READ = types.Array(types.int64, 1, "C", readonly=True)
_WRITTEN = types.int64[::1]


@numba.njit(nogil=True)
def _copy_some(  # noqa: PLR0917  as below
    base: np.uintp, starts: int, ends: int, target: np.uintp, begin: int, stop: int, following: int, count: int
) -> None:
    """Copy the rows from `begin` to `stop`, each line beside a request for one of the row as far on from `following`."""
    for i in range(begin, stop):
        asked = min(following + i - begin, count - 1)
        first, first_asked = _read(np.uintp(ends + 8 * i)), _read(np.uintp(ends + 8 * asked))
        size, to_ask = _read(np.uintp(ends + 8 * i + 8)) - first, _read(np.uintp(ends + 8 * asked + 8)) - first_asked
        at, to = base + np.uintp(_read(np.uintp(starts + 8 * i))), target + np.uintp(first)
        ask = base + np.uintp(_read(np.uintp(starts + 8 * asked)))
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
def _take(state: int, step: int, until: int, count: int) -> int:
    """Where the next part begins that no thread has taken; `count` where there is none before `until`."""
    at = np.uintp(state + 8 * TAKEN)
    return count if _hear(at) >= until else min(_add(at, step), count)


@numba.njit(nogil=True)
def _copy_parts(  # noqa: PLR0917  as below
    base: np.uintp, starts: int, ends: int, target: np.uintp, state: int, step: int, count: int, start: int, until: int
) -> None:
    """Copy the part that begins at `start`, and those before `until` that no thread has taken.

    The next part is taken before one is through, so that its rows are asked for in time.
    """
    ahead = max(_BYTES_AHEAD * count // max(_read(np.uintp(ends + 8 * count)), 1), 1)
    while start < count:
        stop = min(start + step, count)
        turn = max(stop - ahead, start)
        _copy_some(base, starts, ends, target, start, turn, start + ahead, count)
        following = _take(state, step, until, count)
        _copy_some(base, starts, ends, target, turn, stop, following, count)
        _tell(np.uintp(state + 8 * (DONE + start // step)), THERE)
        start = following


@numba.njit(
    [types.int64(types.int64, _READ, _READ, types.uint8[::1], _WRITTEN, types.int64, types.int64, types.int64)],
    cache=True,
    nogil=True,
)
def copy_rows(  # noqa: PLR0917  a kernel is called by position
    base: int,
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    out: npt.NDArray[np.uint8],
    state: npt.NDArray[np.int64],
    step: int,
    first: int,
    end: int,
) -> int:
    """Copy those rows before `end` that no thread has taken, and more while others copy some from `first` on.

    Args:
        base: The address that rows are counted from.
        starts: Where each row begins, in bytes from there, `[picked]`.
        ends: 0, and where each ends in `out`, where they lie one after another, `[picked + 1]`.
        out: Where to, `[ends[-1]]`.
        state: Of this copy, of zeros at its beginning, `[DONE + ceil(picked / step)]`.
        step: Rows of a part, which a thread takes at once.
        first: The first row that must be there, of those picked.
        end: The first one after these.

    Returns:
        `THERE` when all rows from `first` to `end` are, or `NOT_YET` while another thread copies some.
    """
    count, told = len(starts), state.ctypes.data
    given = np.uintp(base), starts.ctypes.data, ends.ctypes.data, np.uintp(out.ctypes.data), told, step, count
    part, last, looks, until = first // step, -(-end // step), 0, end
    while True:
        start = _take(told, step, until, count)
        looks += start == count and until == count
        _copy_parts(*given, start, until)
        while part < last and _hear(np.uintp(told + 8 * (DONE + part))) == THERE:
            part += 1
        if part == last:
            return THERE
        if looks > _LOOKS:
            return NOT_YET
        until = min(max(until, _hear(np.uintp(told + 8 * TAKEN)) + 1), count)


JOBS, SLOT, HELPER = 8, 16, 8
"""Copies that a board has room for, words of each, and words of each helper."""
_NEWEST, _ENDED, _HELPERS = 0, 1, 8
_NUMBER, _BASE, _STARTS, _ENDS, _COUNT, _OUT, _STATE, _STEP = range(8)
"""Words of a copy on the board. Its number is 0 where it must not be begun."""
_HOLDS, _SEEN, _SLEEPS = range(3)
"""Words of a helper: the copy whose memory it looks at, the last copy it came to, and whether it has to be woken."""
ENDED, SLEEPY = 0, 1
"""Why a helper left the board."""


def board_words(helpers: int) -> int:
    """Words of a board for so many helpers."""
    return _HELPERS + helpers * HELPER + JOBS * SLOT


@numba.njit(nogil=True)
def _slot(board: int, helpers: int, number: int) -> int:
    """The address of the place of a copy on the board."""
    return board + 8 * (_HELPERS + helpers * HELPER + number % JOBS * SLOT)


@numba.njit(nogil=True)
def _is_held(board: int, helpers: int, number: int) -> bool:
    """Whether a helper looks at the memory of a copy, after whose number was taken from the board."""
    found = False
    for one in range(helpers):
        found |= _add(np.uintp(board + 8 * (_HELPERS + one * HELPER + _HOLDS)), 0) == number
    return found


@numba.njit(nogil=True)
def _sleepers(board: int, helpers: int) -> int:
    """Which helpers have to be woken, a bit each; they count as asleep until they are awake."""
    found = 0
    for one in range(helpers):
        found |= _add(np.uintp(board + 8 * (_HELPERS + one * HELPER + _SLEEPS)), 0) << one
    return found


@numba.njit([types.int64(_WRITTEN, types.int64, types.int64, types.int64)], cache=True, nogil=True)
def attend(board: npt.NDArray[np.int64], helpers: int, me: int, looks: int) -> int:
    """Copy what is put on the board, one copy after another, until there was nothing for a while.

    A helper says which copy it looks at, and then looks again whether that still stands on the board. Whoever takes it from
    the board looks afterwards whether a helper has said so. All of them see these words in one order, so one sees the other.

    Args:
        board: Of zeros at the beginning, `[board_words(helpers)]`.
        helpers: How many there are.
        me: Which one this is.
        looks: How often to look in vain.

    Returns:
        `SLEEPY` for want of copies, or `ENDED`.
    """
    start = board.ctypes.data
    mine, newest_at = start + 8 * (_HELPERS + me * HELPER), np.uintp(start + 8 * _NEWEST)
    seen, idle = _read(np.uintp(mine + 8 * _SEEN)), 0
    _swap(np.uintp(mine + 8 * _SLEEPS), 0)
    while True:
        newest = _hear(newest_at)
        if seen < newest:
            seen, idle = max(seen + 1, newest - JOBS + 1), 0
            slot = _slot(start, helpers, seen)
            _swap(np.uintp(mine + 8 * _HOLDS), seen)
            if _add(np.uintp(slot + 8 * _NUMBER), 0) == seen:
                base, target = np.uintp(_read(np.uintp(slot + 8 * _BASE))), np.uintp(_read(np.uintp(slot + 8 * _OUT)))
                starts, ends = _read(np.uintp(slot + 8 * _STARTS)), _read(np.uintp(slot + 8 * _ENDS))
                state, step = _read(np.uintp(slot + 8 * _STATE)), _read(np.uintp(slot + 8 * _STEP))
                count = _read(np.uintp(slot + 8 * _COUNT))
                _copy_parts(base, starts, ends, target, state, step, count, _take(state, step, count, count), count)
            _tell(np.uintp(mine + 8 * _HOLDS), 0)
            continue
        if _hear(np.uintp(start + 8 * _ENDED)):
            return ENDED
        idle += 1
        if idle > looks:
            _swap(np.uintp(mine + 8 * _SLEEPS), 1)
            if _add(newest_at, 0) == newest and not _add(np.uintp(start + 8 * _ENDED), 0):
                _tell(np.uintp(mine + 8 * _SEEN), seen)
                return SLEEPY
            _swap(np.uintp(mine + 8 * _SLEEPS), 0)
            idle = 0


@numba.njit(
    [types.int64(_WRITTEN, types.int64, types.int64, types.int64, _READ, _READ, types.uint8[::1], _WRITTEN, types.int64)],
    cache=True,
    nogil=True,
)
def put_up(  # noqa: PLR0917  a kernel is called by position
    board: npt.NDArray[np.int64],
    helpers: int,
    number: int,
    base: int,
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    out: npt.NDArray[np.uint8],
    state: npt.NDArray[np.int64],
    step: int,
) -> int:
    """Put a copy on the board, in the place of one that was put there some time ago.

    Args:
        board: As `attend` has it.
        helpers: The same.
        number: Of the copy: one more than that of the one before; the first is 1.
        base: As `copy_rows` has it; all of this must stay until the copy was taken down.
        starts: The same.
        ends: The same.
        out: The same.
        state: The same.
        step: The same.

    Returns:
        Which helpers have to be woken, a bit each; -1 where it found no place, since a helper still copies the one there.
    """
    start = board.ctypes.data
    slot = _slot(start, helpers, number)
    _swap(np.uintp(slot + 8 * _NUMBER), 0)
    if number > JOBS and _is_held(start, helpers, number - JOBS):
        return -1
    _tell(np.uintp(slot + 8 * _BASE), base)
    _tell(np.uintp(slot + 8 * _STARTS), starts.ctypes.data)
    _tell(np.uintp(slot + 8 * _ENDS), ends.ctypes.data)
    _tell(np.uintp(slot + 8 * _COUNT), len(starts))
    _tell(np.uintp(slot + 8 * _OUT), out.ctypes.data)
    _tell(np.uintp(slot + 8 * _STATE), state.ctypes.data)
    _tell(np.uintp(slot + 8 * _STEP), step)
    _swap(np.uintp(slot + 8 * _NUMBER), number)
    _swap(np.uintp(start + 8 * _NEWEST), number)
    return _sleepers(start, helpers)


@numba.njit([types.boolean(_WRITTEN, types.int64, types.int64, _WRITTEN)], cache=True, nogil=True)
def take_down(board: npt.NDArray[np.int64], helpers: int, number: int, state: npt.NDArray[np.int64]) -> bool:
    """Take a copy from the board, and see that no helper goes on with it.

    Args:
        board: As `attend` has it.
        helpers: The same.
        number: Of the copy.
        state: Of the copy.

    Returns:
        Whether its memory is free: no helper looks at it any more.
    """
    start = board.ctypes.data
    number_at = np.uintp(_slot(start, helpers, number) + 8 * _NUMBER)
    if _hear(number_at) == number:
        _swap(number_at, 0)
    _swap(np.uintp(state.ctypes.data + 8 * TAKEN), _NONE_LEFT)
    looks = 0
    while _is_held(start, helpers, number):
        looks += 1
        if looks > _LOOKS:
            return False
    return True


@numba.njit([types.int64(_WRITTEN, types.int64)], cache=True, nogil=True)
def end(board: npt.NDArray[np.int64], helpers: int) -> int:
    """Have all helpers leave the board; which of them have to be woken for it, a bit each."""
    _swap(np.uintp(board.ctypes.data + 8 * _ENDED), 1)
    return _sleepers(board.ctypes.data, helpers)
