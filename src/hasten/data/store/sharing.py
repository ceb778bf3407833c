"""Rows that several threads copy with the kernels, and that arrive in their order.

Helpers begin at once, and whoever asks for rows copies along until these are there. So while a loop is busy with a batch, or
Python between two, its next ones are copied. Helpers sleep when nothing was asked for in a while.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from hasten.data.kernels import kernels_of
from hasten.data.store.later import Later

Bytes: TypeAlias = npt.NDArray[np.uint8]
Index: TypeAlias = npt.NDArray[np.int64]
_MOST_HELPERS = 3
_STEP_BYTES = 2**17
"""Bytes of a part, which a thread copies at once: some microseconds."""
_LOOKS = 200_000
"""How often a helper looks for another copy before it sleeps: some tenths of a millisecond. Waking it takes as long."""
_WAIT_SECONDS = 10.0
"""For a helper at the end of the process: it may wait for a disk."""


class Rows(NamedTuple):
    """Rows picked from memory that stays as it is, each a range of bytes that is there: nobody looks again.

    Attributes:
        base: The address that they are counted from.
        starts: Where each begins, in bytes from there, `[picked]`.
        ends: 0, and where each ends when they are laid one after another, `[picked + 1]`.
        memory: What they lie in: held until they are copied.
    """

    base: int
    starts: Index
    ends: Index
    memory: Any


def rows_of(kernels: Any, table: Bytes, at: Index) -> Rows:
    """Rows of a table, `[rows, bytes of a row]`, by their numbers, `[picked]`.

    Raises:
        IndexError: One of them is none of the table.
    """
    starts, ends = np.empty(len(at), np.int64), np.empty(len(at) + 1, np.int64)
    if not kernels.measure_rows(len(table), table.shape[1], _read_only(np.ascontiguousarray(at, np.int64)), starts, ends):
        raise IndexError(f"a row of {at.min()} to {at.max()} is out of range: there are {len(table)}.")
    return Rows(table.ctypes.data, starts, ends, table)


class Copy:
    """A copy under way: what is copied where, and how far it came. Its memory stays until no helper looks at it.

    Args:
        kernels: `hasten.data.store.kernels`.
        rows: What is copied.
        out: Where to, `[bytes of all rows]`.
    """

    __slots__ = ("_arguments", "_kernels", "_memory", "_taken_down")

    def __init__(self, kernels: Any, rows: Rows, out: Bytes) -> None:
        self._kernels, self._memory = kernels, rows.memory
        self._taken_down: Callable[[], bool] | None = None
        count = len(rows.starts)
        step = max(_STEP_BYTES * count // max(len(out), 1), 1)
        state = np.zeros(kernels.DONE - (-count // step), np.int64)
        self._arguments = (rows.base, _read_only(rows.starts), _read_only(rows.ends), out, state, step)

    def __del__(self) -> None:
        while self._taken_down is not None and not self._taken_down():
            time.sleep(0)  # a helper waits for memory, or for the system: let it go on

    def need(self, first: int, end: int) -> None:
        """Copy along until the rows from `first` to `end` (not included) are there."""
        while self._kernels.copy_rows(*self._arguments, first, end) == self._kernels.NOT_YET:
            time.sleep(0)  # another thread has taken some, and the system lets it wait: let it go on

    def put_up(self, board: npt.NDArray[np.int64], helpers: int, number: int) -> int:
        """Put it on the board of helpers, as the copy of this number, until it is not needed any more.

        Returns:
            Which helpers have to be woken, a bit each.
        """
        # Before: an interrupt right after it was put up must not leave helpers at memory that is given back.
        self._taken_down = partial(self._kernels.take_down, board, helpers, number, self._arguments[4])
        sleepers: int = self._kernels.put_up(board, helpers, number, *self._arguments)
        if sleepers < 0:  # it found no place
            self._taken_down = None
            return 0
        return sleepers


class Arriving(Later):
    """Rows of a copy under way.

    Args:
        copy: Which.
        out: Where its rows arrive, these alone: `[rows, ...]` of NumPy, or `[rows]` of Arrow.
        first: The number of the first of them in the copy.
    """

    __slots__ = ("_copy", "_first", "_out")

    def __init__(self, copy: Copy, out: Any, first: int) -> None:
        self._copy, self._out, self._first = copy, out, first

    @property
    def nbytes(self) -> int:
        """Of the rows."""
        found: int = self._out.nbytes
        return found

    def __len__(self) -> int:
        return len(self._out)

    def __getitem__(self, rows: slice) -> Arriving:
        return Arriving(self._copy, self._out[rows], self._first + rows.indices(len(self._out))[0])

    def made(self) -> Any:
        """The rows, all there."""
        if len(self._out):
            self._copy.need(self._first, self._first + len(self._out))
        return self._out


class Helpers:
    """Threads of this process that copy what they are given, until the process ends.

    A copy that they have not begun can be dropped: where they are late and whoever asked has done it alone, its memory is
    free. They must end before the interpreter does: one that Python stops within a destructor would end it with an abort.

    Args:
        kernels: `hasten.data.store.kernels`.
        count: How many.
    """

    def __init__(self, kernels: Any, count: int) -> None:
        self._kernels = kernels
        self._board = np.zeros(kernels.board_words(count), np.int64)
        self._wakers = [threading.Event() for _ in range(count)]
        self._number = 0
        self._threads = [
            threading.Thread(target=self._work, args=(one,), name=f"hasten-copy-{one}", daemon=True) for one in range(count)
        ]

    def start(self) -> Self:
        """Have them look for copies."""
        for thread in self._threads:
            thread.start()
        return self

    def ask(self, copy: Copy) -> None:
        """Have a copy made, while whoever asks goes on; from one thread alone."""
        self._number += 1
        self._wake(copy.put_up(self._board, len(self._wakers), self._number))

    def forget(self) -> None:
        """In the child of a fork, where none of them is."""
        self._board[:] = 0

    def close(self) -> None:
        """Have the threads end; what they have not begun is left to whoever needs it."""
        self._wake(self._kernels.end(self._board, len(self._wakers)))
        for thread in self._threads:
            thread.join(_WAIT_SECONDS)

    def _wake(self, sleepers: int) -> None:
        for one, waker in enumerate(self._wakers):
            if sleepers >> one & 1:
                waker.set()

    def _work(self, me: int) -> None:
        while self._kernels.attend(self._board, len(self._wakers), me, _LOOKS) != self._kernels.ENDED:
            self._wakers[me].wait()
            self._wakers[me].clear()


@lru_cache(maxsize=1)
def helpers() -> Helpers:
    """Those of this process, one for each thread that torch computes with but this one; they end with it."""
    found = Helpers(kernels(), min(max(torch.get_num_threads() - 1, 1), _MOST_HELPERS)).start()
    atexit.register(found.close)
    os.register_at_fork(after_in_child=found.forget)
    return found


@lru_cache(maxsize=1)
def kernels() -> Any:
    """The kernels, compiled once for this machine; None where Numba is not installed, or has no place to keep them."""
    return kernels_of("hasten.data.store.kernels", "rows are copied")


def _read_only(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same memory, as the kernels know it."""
    view = values.view()
    view.flags.writeable = False
    return view
